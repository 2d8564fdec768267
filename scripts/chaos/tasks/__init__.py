"""What tasks do: importing these modules fills the table of behaviours."""

from chaos.tasks import contexts, ends, harms, loops

MODULES = (contexts, ends, harms, loops)
