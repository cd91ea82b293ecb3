"""What customers write: subjects, how much each raises the risk that a customer leaves, and sentences of each."""

from __future__ import annotations

from typing import NamedTuple


class Subject(NamedTuple):
    """One kind of message.

    Attributes:
        weight: of the subject in the score that decides whether a customer leaves.
        seen: sentences of the training messages.
        held_out: sentences of the holdout; no training message has them.
    """

    weight: float
    seen: tuple[str, ...]
    held_out: tuple[str, ...]


SUBJECTS: dict[str, Subject] = {
    "leaving": Subject(
        2.6,
        (
            "I want to close my account at the end of the month.",
            "How do I cancel my subscription?",
            "We have found another supplier and will stop ordering from you.",
            "Please delete my account and all of my data.",
            "I am done with this shop, stop my membership today.",
            "Your competitor is cheaper, so this was my last order.",
            "Tell me the notice period, I do not want to renew.",
            "I no longer wish to be a customer of yours.",
        ),
        (
            "Please end my contract as soon as possible.",
            "I am switching to a different store, do not extend my plan.",
            "Where is the button to terminate the membership?",
            "There will be no further orders from me.",
        ),
    ),
    "billing": Subject(
        1.2,
        (
            "You have charged my card twice for the same order.",
            "The invoice shows an amount that I never agreed to.",
            "My refund of last month has still not arrived.",
            "Why did the price go up after I had paid?",
            "There is a fee on my bill that nobody told me about.",
            "I was billed for an order that I sent back.",
            "The discount that you promised is missing from the invoice.",
            "Give me my money back, I have waited for weeks.",
        ),
        (
            "Two payments were taken from my bank account instead of one.",
            "I am still waiting for the reimbursement.",
            "The total on the receipt is higher than what the website said.",
            "You debited me for something that I had returned.",
        ),
    ),
    "broken": Subject(
        0.6,
        (
            "The kettle arrived with a crack in the glass.",
            "It stopped working after two days.",
            "The box was open and a part is missing.",
            "The lamp does not switch on at all.",
            "The zip of the jacket broke the first time I used it.",
            "The screen has a scratch across the middle.",
            "It makes a loud noise and smells of burning.",
            "You have sent me a defective charger.",
        ),
        (
            "The handle fell off when I picked it up.",
            "The device is damaged and will not start.",
            "One of the cups came in pieces.",
            "After a week the battery is dead.",
        ),
    ),
    "question": Subject(
        -0.9,
        (
            "Which size should I take if I am 180 cm tall?",
            "Does this lamp work with a dimmer?",
            "Can I have a parcel delivered to my office?",
            "Is the blue one going to be available again?",
            "How do I change the address in my profile?",
            "Do you have gift wrapping?",
            "What are the measurements of the small table?",
            "Can I add something to the order that I placed this morning?",
        ),
        (
            "Will this fit a person with wide shoulders?",
            "Could you tell me when the green version is back in stock?",
            "Where do I enter a new phone number?",
            "Is it possible to send this as a present?",
        ),
    ),
    "praise": Subject(
        -2.2,
        (
            "Thank you, everything came quickly and in perfect condition.",
            "I love the new chair, it is exactly what I wanted.",
            "Your colleague on the phone was very kind and helped me at once.",
            "Best shop that I know, I have told all my friends.",
            "The quality is even better than I expected.",
            "Great service as always.",
            "My daughter is so happy with her present.",
            "Just wanted to say how pleased I am with the coat.",
        ),
        (
            "I am delighted with my purchase.",
            "What a wonderful experience, keep it up.",
            "The team did a fantastic job for us.",
            "We are very satisfied, many thanks.",
        ),
    ),
}

OPENERS = ("", "Hello,", "Dear team,", "Good morning.")
CLOSERS = ("", "Please answer by e-mail.", "I have written to you before.", "Best regards")
