"""The agent: model, tools, model, ... It knows no provider, no protocol and no user interface."""
