"""Keys and sessions in items of DynamoDB."""
