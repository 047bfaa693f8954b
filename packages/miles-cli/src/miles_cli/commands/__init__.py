"""The commands of `miles`, one file each. Heavy imports happen inside the command."""
