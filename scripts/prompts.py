"""The fixed prompts of our measurements: short chat questions of the kinds a small model is asked.

Keep them out of training data. Numbers from different prompts do not compare.
"""

PROMPTS = (
    # explain
    "Explain in simple words why the sky is blue.",
    "What is the difference between weather and climate?",
    "How does a bicycle stay upright while it is moving?",
    "Why do we have leap years?",
    "Explain what a database index is to a new programmer.",
    # code
    "Write a Python function that returns the n-th Fibonacci number.",
    "Write a Python function that counts the vowels in a string.",
    "Show me a SQL query that lists the ten customers with the most orders.",
    "Write a shell command that finds all files larger than 100 MB.",
    "Write a JavaScript function that removes duplicates from an array.",
    # lists
    "List five things to pack for a weekend hike.",
    "Give me ten ideas for a birthday present for a gardener.",
    "List the planets of the solar system with one fact about each.",
    "Name six healthy breakfasts that take less than ten minutes.",
    "What are the steps to change a flat tyre on a car?",
    # arithmetic
    "A train travels 180 km in 2 hours. How far does it travel in 5 hours? Show your steps.",
    "I buy 3 notebooks at 4 dollars each and 2 pens at 1.50 dollars each. What do I pay?",
    "What is 15 percent of 240? Explain how you get there.",
    "If a recipe for 4 people needs 300 g of flour, how much is needed for 10 people?",
    "The sum of two numbers is 20 and their difference is 4. What are the numbers?",
    # rewrite
    "Rewrite this more politely: Send me the report now.",
    "Correct the grammar: He don't know where is the station.",
    "Summarise in one sentence: Bees visit flowers for nectar and carry pollen between them.",
    "Turn this into a list: we need eggs, milk, two loaves of bread and some apples.",
    "Translate into French: Good morning, I would like a cup of coffee, please.",
    # write
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "Write a short poem about the first snow of winter.",
    "Write an email to a colleague that moves our meeting from Monday to Wednesday.",
    "Write a product description for a wooden desk lamp.",
    "Tell me a short story about a robot that learns to paint.",
)
