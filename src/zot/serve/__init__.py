"""Each dialect over any byte stream."""
