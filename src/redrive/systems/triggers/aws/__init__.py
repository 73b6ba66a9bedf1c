"""Triggers on DynamoDB and SQS: events are heads, deliveries are their parts."""
