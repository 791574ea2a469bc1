"""The fixed questions of our measurements, without their labels."""

from dflash2.prompts import QUESTIONS

PROMPTS = tuple(text for texts in QUESTIONS.values() for text in texts)
