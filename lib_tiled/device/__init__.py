"""What a device is (`facts`) and what it was seen to run (`probe`). Imports torch alone."""
