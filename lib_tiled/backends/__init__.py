"""Which kernel runs a call, and why. Imports the kernel and the device, and tells listeners what ran."""
