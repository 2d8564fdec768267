"""What this process tells of itself through OpenTelemetry, if its host app has configured that.

Nothing here imports OpenTelemetry before somebody else has: who configures an SDK has, and who has none pays
for a look into `sys.modules`. It knows no database, so that the producers' code may use it too.
"""
