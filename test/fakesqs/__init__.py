"""The parts of test/fake_sqs.py: see there."""
