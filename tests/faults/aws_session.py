"""What clients of AWS are made of, loaded once for all processes that are forked from one that has imported this."""

import aiobotocore.session

SESSION = aiobotocore.session.get_session()
for _service in ("dynamodb", "sqs"):
    for _model in ("service-2", "endpoint-rule-set-1"):
        SESSION.get_component("data_loader").load_service_model(_service, _model)
