"""The steps of the shop's workflows, a module each."""
