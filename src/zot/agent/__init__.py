"""The agent: model, tools, model, ... It knows no provider, no dialect and no face."""
