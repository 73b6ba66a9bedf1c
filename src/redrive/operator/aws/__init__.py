"""What people look at, in items of DynamoDB."""
