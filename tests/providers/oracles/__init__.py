"""The vendors' own clients as judges: of lab's replies, and of our requests."""
