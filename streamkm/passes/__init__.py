"""Passes over all rows: each class gathers one thing while every row is read once. None searches for centers."""
