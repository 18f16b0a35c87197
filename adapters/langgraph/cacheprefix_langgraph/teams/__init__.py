"""Teams, task graphs and memory for LangGraph, made of forks: what the front doors alone do not bring."""
