"""What really ran: counted per generation, told in one line."""
