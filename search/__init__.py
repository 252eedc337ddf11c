"""A study: strategies that propose, the course of a trial, resume."""
