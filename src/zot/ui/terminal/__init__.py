"""The terminal front end. It sees `Conversation`, `Home` and events only."""
