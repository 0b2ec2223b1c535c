"""This worker among the others, and the engines that compute a step."""
