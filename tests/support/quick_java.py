"""Settings for a Java that lives for seconds: half of its processor time would be for its optimizing compiler."""

from __future__ import annotations

QUICK_JAVA = {"JDK_JAVA_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
