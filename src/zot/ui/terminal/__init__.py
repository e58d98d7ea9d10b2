"""The terminal: a face of a conversation. It sees `Conversation`, `Home` and events, and nothing behind them."""
