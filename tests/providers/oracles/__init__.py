"""The vendors' own clients as judges: of what lab says, and of what we send."""
