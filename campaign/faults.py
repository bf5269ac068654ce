def check_faults(trial):
    pass
