"""Held-out prompts with labels, for measuring accept lengths. Never train on them."""

from __future__ import annotations

from prompts import PROMPTS

CODE = """Write a Python function that checks if a year is a leap year.
Write a Python class for a bank account with deposit and withdraw.
How do I read a JSON file in Python?
Write a regular expression that matches a phone number.
Write a function in Java that computes the power of a number.
Explain this code: for i in range(10): print(i * i)
Write a Python script that renames all files in a folder.
Write a C program that prints Hello World.
Write a JavaScript function that waits for one second.
How do I sort a dictionary by value in Python?
Write SQL to create a table of employees with a salary column.
Write a Python decorator that measures how long a function takes.
Write a Python function that returns the longest word of a sentence.
Write HTML and CSS for a red button.
Write a unit test for a function called add.
Write a Python generator that yields even numbers.
Write a Rust function that adds two integers.
What does the keyword static mean in C?
Write a Python program that prints the first 20 prime numbers.
Write a Go program that starts two goroutines.
Write a Python function that finds duplicates in a list."""

MATHS = """What is 48 divided by 6, and then multiplied by 3?
A shirt costs 25 dollars and is reduced by 20 percent. What is the new price?
How many minutes are there in three and a half hours?
Solve the equation 2x - 7 = 15 step by step.
A farmer has 17 sheep, and all but 9 run away. How many are left?
What is the perimeter of a square with a side of 12 cm?
Tom reads 30 pages a day. How many days does he need for a book of 420 pages?
What is the square root of 144, and why?
Convert 5 kilometres to metres and centimetres.
If 3 workers need 8 hours, how long do 6 workers need?
What is the probability of rolling a six with a fair die?
Write the number 250 as a product of prime factors.
A tank holds 200 litres and loses 5 litres an hour. When is it empty?
What is the sum of the angles of a triangle? Explain.
Lucy is twice as old as her brother, who is 7. How old will she be in 5 years?
Simplify the fraction 36/60.
A pizza is cut into 8 slices and 3 are eaten. What fraction is left?
Calculate the volume of a box of 2 m by 3 m by 4 m.
What is 7 factorial?
A bus has 40 seats and 28 are taken. What percentage is free?
Explain how to add 1/3 and 1/4."""

REWRITE = """Rewrite in the past tense: I walk to school and meet my friends.
Make this shorter: Due to the fact that it was raining heavily, we decided that we would \
stay at home.
Correct the mistakes: She have three childs and two dog.
Change to passive voice: The chef prepared the meal.
Rewrite for a ten-year-old: Evaporation is the transition of a liquid into vapour.
Translate into Spanish: Where is the nearest train station?
Write this as bullet points: First wash the rice, then boil it, and finally let it rest.
Rewrite with a happy tone: The party was okay.
Expand into a full sentence: meeting cancelled, new date soon.
Replace the adjectives: The big red house stands on the small hill.
Summarise: The library opens at nine, closes at six, and is closed on Sundays and public holidays.
Rewrite as a question: You have finished your homework.
Make this sound professional: hey, can u fix the bug asap?
Put these words in alphabetical order: pear, fig, cherry, apple, mango.
Add punctuation: when the rain stopped we went outside the air was fresh
Translate into German: My brother works in a hospital.
Convert to a numbered list: open the lid, add water, close the lid, press start.
Rewrite without repeating words: The very very old man walked very slowly.
Turn this note into an email: late today, doctor, back at noon.
Rewrite from the first person to the third person: I lost my keys and I was angry."""

LISTS = """List seven animals that live in the ocean.
What are three ways to save water at home?
Give me five synonyms for the word happy.
List the ingredients of a vegetable soup.
Name four inventions of the nineteenth century.
List six exercises that need no equipment.
What are the parts of a plant?
Give me a packing list for a beach holiday.
List the months of the year with their number of days.
Name five famous scientists and what they discovered.
List ten common interview questions.
What are the steps to plant a tree?
Give eight names for a pet rabbit.
List four advantages of working from home.
Write a shopping list for a family breakfast.
What are five signs of a healthy diet?
Make a timetable for a day of study.
Give me three riddles with answers.
List the colours of the rainbow in order.
Name six countries in South America with their capitals."""

EXPLAIN = """How do airplanes stay in the air?
Why does ice float on water?
What causes the seasons?
Explain what a black hole would do to light.
How does a refrigerator work?
What is the difference between a virus and a bacterium?
Why do leaves change colour in autumn?
How do vaccines protect us?
What is an algorithm?
Explain supply and demand with an example.
How is paper made?
What happens when we dream?
Why is the ocean salty?
How does a microwave heat food?
What is the greenhouse effect?
Explain the rules of chess in a few sentences.
Why do we yawn?
What is the difference between speed and velocity?
How do magnets work?
What is the purpose of a constitution?"""

STORY = """Write a story about a dog who finds its way home.
Tell me a story about two friends who build a boat.
Write a poem about the sea at night.
Write a short fairy tale about a princess who loves mathematics.
Write a scene in which a detective finds a strange letter.
Tell a funny story about a talking parrot.
Write a story that begins with: The door was open.
Write a poem about my grandmother's kitchen.
Write a short science fiction story about the last city on Earth.
Tell me a story about a boy and his kite.
Write a ghost story for children.
Write a limerick about a cat.
Write a story about a violin that plays itself.
Describe a sunrise over the mountains.
Write a monologue of a tired superhero.
Write a story about a secret garden behind a school.
Write a letter from a soldier to his family.
Write a short play about a queue in a bakery.
Tell a legend about how the stars came to be.
Write a story about a snowstorm and a stranger."""

GENERAL = """Hello, how are you today?
What should I cook for dinner tonight?
Can you recommend a good book?
I feel stressed at work. What can I do?
Who was Marie Curie?
What is the capital of Australia?
Write a tweet about the importance of sleep.
How can I improve my English?
What do you think about electric cars?
Plan a weekend in a big city on a small budget.
Help me choose between a cat and a dog.
Write an apology to a neighbour for the noise.
What is the best way to learn the guitar?
Give me advice for my first day at a new job.
What happened in 1969?
How do I get a coffee stain out of a shirt?
Write a slogan for a bicycle shop.
What is your name and who made you?
Write a job advertisement for a nurse.
How much water should I drink each day?
Tell me something interesting about octopuses."""

FORMAT = """Write a JSON object for a book with title, author and year.
Make a table of three fruits with colour and taste.
Write a YAML list of five countries.
Write a Markdown table of the first five elements.
Give me a CSV of four students with grades.
Write an XML snippet for an address.
Write a JSON array of three users with id and email.
Make a table that compares trains and planes.
Write an HTML list of four hobbies.
Write a Dockerfile for a Python application.
Write a JSON schema for a point with x and y.
Make a weekly schedule as a table.
Write a configuration file with a port, a host and a log level.
Write a receipt for three items with a total.
Make a table of verbs in present and past tense.
Write a recipe for pancakes with ingredients and steps.
Write minutes of a short meeting with headings.
Write a CSV of five cities with country and population."""

_FIXED = ("explain", "code", "lists", "maths", "rewrite", "story")  # five each in prompts.py


def held_out_prompts() -> list[tuple[str, str]]:
    """(label, prompt)"""
    groups = {
        "code": CODE,
        "maths": MATHS,
        "rewrite": REWRITE,
        "lists": LISTS,
        "explain": EXPLAIN,
        "story": STORY,
        "general": GENERAL,
        "format": FORMAT,
    }
    fixed = [(_FIXED[i // 5], prompt) for i, prompt in enumerate(PROMPTS)]
    own = [(label, p) for label, text in groups.items() for p in text.splitlines()]
    return fixed + own
