"""A scikit-learn Pipeline on rows of mixed types: will a flight leave New York more than 15 minutes late?"""
