"""Front ends for people: conversations in a terminal, as plain lines and as HTML."""
