"""What this process tells of itself through OpenTelemetry, if its host app has configured that.

Nothing here imports OpenTelemetry before other code has: an app with an SDK has done so, and one without pays
for a look into `sys.modules`. It knows no database, so that the producers' code may use it too.
"""
