#!/usr/bin/env python3
"""A tool for the model and a command for the person, with the SDK. The weather is made up, so it needs no network."""

from typing import Literal

import zot.ext

weather = zot.ext.Extension("weather", "1.0.0")

CELSIUS = {"berlin": (16, "fog"), "lisbon": (24, "sunny"), "oslo": (-3, "snow")}


@weather.tool("weather")
def current(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> str:
    """Get the current weather for a city.

    Args:
        city: The name of the city.
        unit: The unit of the temperature.
    """
    if city.lower() not in CELSIUS:
        raise zot.ext.ToolError(f"no weather for {city}; there is one for {', '.join(sorted(CELSIUS))}")
    degrees, sky = CELSIUS[city.lower()]
    shown = f"{degrees}°C" if unit == "celsius" else f"{degrees * 9 // 5 + 32}°F"
    return f"{city}: {shown}, {sky}"


@weather.command("weather", "current weather for a city")
def ask(args: str) -> zot.ext.Response:
    return zot.ext.prompt(f"Show today's weather for {args or 'Berlin'} in one line. Use the weather tool.")


if __name__ == "__main__":
    weather.run()
