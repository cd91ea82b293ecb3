"""How likely is a flight that is about to leave New York to arrive more than 15 minutes late?"""
