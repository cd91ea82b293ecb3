"""Which digit is it? A small convolutional network on scikit-learn's 8 x 8 images."""
