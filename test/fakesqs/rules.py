"""What SQS allows, what it refuses, and with which words: the rules as tables.

Every rule names its source:
  M      Amazon's own API model of SQS with its documentation text (botocore data/sqs, 2026)
  DG p   Amazon SQS Developer Guide, page p, as of 2026; DG23: as published in awsdocs/amazon-sqs-developer-guide
  REC t  an answer of the real SQS, recorded by the validated test t of localstack (tests/aws/services/sqs/)
  GH r n issue n of repository r, in which somebody shows what SQS answered
  ?      no source found: the choice made here is said
"""
import re

# Sizes and numbers.
MESSAGE_BYTES = 1048576             # M; also the total of a batch: REC test_send_message_batch_with_oversized_contents
BATCH_ENTRIES = 10                  # M
MESSAGE_ATTRIBUTES = 10             # DG quotas-messages
MAX_VISIBILITY = 43200              # s, M; also in total from the receive: DG23 sqs-visibility-timeout
IN_FLIGHT = 120000                  # M; DG quotas-fifo
DEDUPLICATION_WINDOW = 300          # s from the accepted send: M
ATTEMPT_ID_WINDOW = 300             # s: M ReceiveMessage
PURGE_INTERVAL = 60                 # s: REC test_successive_purge_calls_fail
DELETED_NAME_INTERVAL = 60          # s: M QueueDeletedRecently
CLOCK_TOLERANCE = 900               # s between X-Amz-Date and SQS's clock: GH async-aws/aws 1634, aws/aws-sdk-go 487
MOVE_TASK_RATE = 500                # messages/s: M StartMessageMoveTask
FIFO_CALLS_PER_SECOND = 300         # per action: DG troubleshooting-fifo-throttling-issues

# Patterns, all matched as a whole.
ENTRY_ID = re.compile(r'[A-Za-z0-9_-]{1,80}')                                       # M
GROUP_ID = re.compile(r'[A-Za-z0-9!-/:-@\[-`{-~]{1,128}')                           # M; REC test_message_deduplication_id_invalid
QUEUE_NAME = re.compile(r'[A-Za-z0-9_-]{1,80}|(?=.{6,80}$)[A-Za-z0-9_-]+\.fifo')    # M
CONTENT = re.compile('[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*')      # M SendMessage
ATTRIBUTE_NAME = re.compile(r'(?!(?i:aws|amazon)\.)(?!.*\.\.)(?!\.)[A-Za-z0-9_.-]{1,256}(?<!\.)')   # DG23 sqs-message-metadata
ATTRIBUTE_TYPE = re.compile(r'(String|Number|Binary)(\.[A-Za-z0-9_.-]+)?')          # DG23 sqs-message-metadata
ATTRIBUTE_TYPE_LENGTH = 256                                                         # DG23 sqs-message-metadata
TRACE_HEADER = 'AWSTraceHeader'     # the only system attribute, of type String: M

# Attributes of queues: type, lowest, highest value, default (M CreateQueue; defaults also REC
# test_fifo_set_content_based_deduplication_strategy).
QUEUE_ATTRIBUTES = {
    'DelaySeconds': (int, 0, 900, 0),
    'MaximumMessageSize': (int, 1024, MESSAGE_BYTES, MESSAGE_BYTES),
    'MessageRetentionPeriod': (int, 60, 1209600, 345600),
    'ReceiveMessageWaitTimeSeconds': (int, 0, 20, 0),
    'VisibilityTimeout': (int, 0, MAX_VISIBILITY, 30),
    'SqsManagedSseEnabled': (bool, None, None, True),
    'Policy': (str, None, None, None),
    'RedrivePolicy': (str, None, None, None),
    'RedriveAllowPolicy': (str, None, None, None),
    'KmsMasterKeyId': (str, None, None, None),
    'KmsDataKeyReusePeriodSeconds': (int, 60, 86400, None),
}
FIFO_ATTRIBUTES = {
    'FifoQueue': (bool, None, None, None),
    'ContentBasedDeduplication': (bool, None, None, False),
    'DeduplicationScope': (('queue', 'messageGroup'), None, None, 'queue'),
    'FifoThroughputLimit': (('perQueue', 'perMessageGroupId'), None, None, 'perQueue'),
}
MAX_RECEIVE_COUNT = (1, 1000)       # DG sqs-configure-dead-letter-queue

# Errors: name of the API model, with which we refuse -> (prefix and name in __type, name in x-amzn-query-error,
# HTTP status). The two names: REC, everywhere. 403 and the codes of credentials: GH async-aws/aws 1634
# (InvalidSignatureException, JSON), ex-aws/ex_aws 220 and kifi/franz 63 (query names, 403).
SQS = 'com.amazonaws.sqs#'
COMMON = 'com.amazon.coral.service#'
ERRORS = {
    'InvalidParameterValue': (COMMON + 'InvalidParameterValueException', 'InvalidParameterValue', 400),
    'MissingParameter': (COMMON + 'MissingRequiredParameterException', 'MissingParameter', 400),
    'SerializationException': (COMMON + 'SerializationException', 'MalformedInput', 400),
    'UnknownOperationException': (COMMON + 'UnknownOperationException', 'InvalidAction', 404),
    'InvalidAttributeName': (SQS + 'InvalidAttributeName', 'InvalidAttributeName', 400),
    'InvalidAttributeValue': (SQS + 'InvalidAttributeValue', 'InvalidAttributeValue', 400),
    'InvalidMessageContents': (SQS + 'InvalidMessageContents', 'InvalidMessageContents', 400),
    'UnsupportedOperation': (SQS + 'UnsupportedOperation', 'AWS.SimpleQueueService.UnsupportedOperation', 400),
    'QueueDoesNotExist': (SQS + 'QueueDoesNotExist', 'AWS.SimpleQueueService.NonExistentQueue', 400),
    'QueueNameExists': (SQS + 'QueueNameExists', 'QueueAlreadyExists', 400),
    'QueueDeletedRecently': (SQS + 'QueueDeletedRecently', 'AWS.SimpleQueueService.QueueDeletedRecently', 400),
    'PurgeQueueInProgress': (SQS + 'PurgeQueueInProgress', 'AWS.SimpleQueueService.PurgeQueueInProgress', 403),
    'ReceiptHandleIsInvalid': (SQS + 'ReceiptHandleIsInvalid', 'ReceiptHandleIsInvalid', 400),
    'MessageNotInflight': (SQS + 'MessageNotInflight', 'AWS.SimpleQueueService.MessageNotInflight', 400),
    'OverLimit': (SQS + 'OverLimit', 'OverLimit', 403),
    'BatchEntryIdsNotDistinct': (SQS + 'BatchEntryIdsNotDistinct', 'AWS.SimpleQueueService.BatchEntryIdsNotDistinct', 400),
    'BatchRequestTooLong': (SQS + 'BatchRequestTooLong', 'AWS.SimpleQueueService.BatchRequestTooLong', 400),
    'EmptyBatchRequest': (SQS + 'EmptyBatchRequest', 'AWS.SimpleQueueService.EmptyBatchRequest', 400),
    'InvalidBatchEntryId': (SQS + 'InvalidBatchEntryId', 'AWS.SimpleQueueService.InvalidBatchEntryId', 400),
    'TooManyEntriesInBatchRequest':
        (SQS + 'TooManyEntriesInBatchRequest', 'AWS.SimpleQueueService.TooManyEntriesInBatchRequest', 400),
    'ResourceNotFoundException': (SQS + 'ResourceNotFoundException', 'ResourceNotFoundException', 404),
    'InvalidAddress': (SQS + 'InvalidAddress', 'InvalidAddress', 404),
    'InvalidSecurity': (SQS + 'InvalidSecurity', 'InvalidSecurity', 403),
    'KmsAccessDenied': (SQS + 'KmsAccessDenied', 'KMS.AccessDeniedException', 400),
    'KmsDisabled': (SQS + 'KmsDisabled', 'KMS.DisabledException', 400),
    'KmsThrottled': (SQS + 'KmsThrottled', 'KMS.ThrottlingException', 400),
    'AccessDenied': (COMMON + 'AccessDeniedException', 'AccessDenied', 403),
    'RequestThrottled': (SQS + 'RequestThrottled', 'RequestThrottled', 403),
    'ThrottlingException': (COMMON + 'ThrottlingException', 'ThrottlingException', 400),
    'InternalFailure': (COMMON + 'InternalFailure', 'InternalFailure', 500),
    'ServiceUnavailable': (COMMON + 'ServiceUnavailableException', 'ServiceUnavailable', 503),
    'UnrecognizedClientException': (COMMON + 'UnrecognizedClientException', 'InvalidClientTokenId', 403),
    'ExpiredTokenException': (COMMON + 'ExpiredTokenException', 'ExpiredToken', 403),
    'InvalidSignatureException': (COMMON + 'InvalidSignatureException', 'SignatureDoesNotMatch', 403),
    'IncompleteSignatureException': (COMMON + 'IncompleteSignatureException', 'IncompleteSignature', 403),
    'MissingAuthenticationTokenException': (COMMON + 'MissingAuthenticationTokenException', 'MissingAuthenticationToken', 403),
}

# And their words, where they are the same everywhere.
MESSAGES = {
    'QueueDoesNotExist': 'The specified queue does not exist.',                     # REC test_non_existent_queue
    'EmptyBatchRequest': 'There should be at least one SendMessageBatchRequestEntry in the request.',
    'BatchEntryIdsNotDistinct': 'Id {} repeated.',
    'InvalidBatchEntryId': 'A batch entry id can only contain alphanumeric characters, hyphens and underscores. '
                           'It can be at most 80 letters long.',                    # REC test_invalid_batch_id
    'TooManyEntriesInBatchRequest': 'Maximum number of entries per request are 10. You have sent {}.',     # REC test_too_many_entries_in_batch_request
    'BatchRequestTooLong': 'Batch requests cannot be longer than 1048576 bytes. You have sent {} bytes.',  # REC test_send_message_batch_with_oversized_contents
    'InvalidMessageContents': 'Invalid characters found. Valid unicode characters are '
                              '#x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF',
    'ReceiptHandleIsInvalid': 'The input receipt handle "{}" is not a valid receipt handle.',              # REC (ReceiptHandleIsInvalid, "garbage")
    'QueueNameExists': 'A queue already exists with the same name and a different value for attribute {}', # REC test_create_queue_with_different_attributes
    'QueueDeletedRecently': 'You must wait 60 seconds after deleting a queue before you can create another with the same name.',
    'PurgeQueueInProgress': 'Only one PurgeQueue operation on {} is allowed every 60 seconds.',            # REC test_successive_purge_calls_fail
    'OverLimit': 'Too many messages in flight.',
    'UnrecognizedClientException': 'The security token included in the request is invalid.',               # GH ex-aws/ex_aws 220
    'ExpiredTokenException': 'The security token included in the request is expired',                      # GH aws/aws-sdk-go 249
    'ThrottlingException': 'Rate exceeded',
}

EXPIRED_HANDLE = 'Value {} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.'    # REC test_fifo_delete_after_visibility_timeout
NO_GROUP = 'The request must contain the parameter MessageGroupId.'                 # REC test_send_batch_missing_message_group_id_for_fifo_queue
NO_DEDUPLICATION = ('The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId '
                    'provided explicitly')                                          # REC test_send_batch_missing_deduplication_id_for_fifo_queue
BAD_ID = ('Value {0} for parameter {1} is invalid. Reason: {1} can only include alphanumeric and punctuation characters. '
          '1 to 128 in length.')                                                    # REC test_message_deduplication_id_invalid
NOT_FOR_TYPE = ('Value {} for parameter {} is invalid. Reason: The request include parameter that is not valid for this '
                'queue type.')                                                      # REC test_fifo_queue_send_message_with_delay_seconds_fails
TOO_LONG = 'One or more parameters are invalid. Reason: Message must be shorter than {} bytes.'            # REC test_send_oversized_message


class Refusal(Exception):
    """SQS says no. code: a name of ERRORS, or any other (planted by a test)."""

    def __init__(self, code, *args, message=None, status=None, retry_after=None):
        super().__init__(code)
        self.type, self.query_code, known_status = ERRORS.get(code, (code, code, 400))
        self.status = status or known_status
        self.sender_fault = self.status < 500
        self.message = message or MESSAGES.get(code, code).format(*args)
        self.retry_after = retry_after


def invalid(message, *args):
    return Refusal('InvalidParameterValue', message=message.format(*args))
