"""`qwf deploy`: whether code that is about to be deployed fits what is open. Begin with `check`."""
