"""The operations of SQS's JSON protocol: each checks its request by the rules and asks the queues.

An operation is a function (sqs, request, call) -> answer; request and answer are plain dicts as they are in JSON.
The call knows what is not in the JSON: its number, whether the client hung up, and which entries a test makes fail.
"""
import asyncio
import base64
import hashlib
import json
import uuid
from urllib.parse import urlsplit

from . import rules
from .queues import Message, Queue, md5_of_attributes
from .rules import Refusal, invalid

OPERATIONS = {}


def operation(function):
    OPERATIONS[function.__name__] = function
    return function


def required(request, name, kind=str):
    value = request.get(name)
    if value is None:
        raise Refusal('MissingParameter', message='The request must contain the parameter %s.' % name)
    return typed(value, name, kind)


def typed(value, name, kind):
    # What a JSON number or string must be, SQS's parser decides before SQS sees it.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise Refusal('SerializationException', message='%s is not of the expected type' % name)
    return value


def number(request, name, low, high, default, reason):
    value = request.get(name)
    if value is None:
        return default
    typed(value, name, int)
    if not low <= value <= high:
        raise invalid('Value {} for parameter {} is invalid. Reason: ' + reason, value, name)
    return value


def queue_of(sqs, request):
    # By the path alone, so that all ports lead to the same queue.
    name = urlsplit(required(request, 'QueueUrl')).path.split('/')
    queue = sqs.queues.get(name[2]) if name[:2] == ['', sqs.account] and len(name) == 3 else None
    if queue is None:
        raise Refusal('QueueDoesNotExist')
    return queue


def limit_rate(sqs, queue, action):
    if queue.fifo and sqs.settings['fifo_calls_per_second']:
        second, calls = queue.calls.get(action, (0, 0))
        now = int(sqs.clock.now())
        calls = calls + 1 if second == now else 1
        queue.calls[action] = now, calls
        if calls > sqs.settings['fifo_calls_per_second']:
            raise Refusal('ThrottlingException')


# Messages


def check_batch(entries):
    if not entries:
        raise Refusal('EmptyBatchRequest')
    if len(entries) > rules.BATCH_ENTRIES:
        raise Refusal('TooManyEntriesInBatchRequest', len(entries))
    seen = set()
    for entry in entries:
        entry_id = required(typed(entry, 'Entries', dict), 'Id')
        if not rules.ENTRY_ID.fullmatch(entry_id):
            raise Refusal('InvalidBatchEntryId')
        if entry_id in seen:
            raise Refusal('BatchEntryIdsNotDistinct', entry_id)
        seen.add(entry_id)


def batch(entries, call, act):
    """Entry by entry, in order. One that fails says why and does not hinder the others."""
    answer = {'Successful': [], 'Failed': []}
    for index, entry in enumerate(entries):
        fault = call.planted(index, entry)
        if fault and not fault.accepts:
            answer['Failed'] += fault.failed(entry)
            continue
        try:
            done = {'Id': entry['Id'], **(act(entry) or {})}
            if not fault:
                answer['Successful'].append(done)
        except Refusal as refusal:
            answer['Failed'].append({'Id': entry['Id'], 'SenderFault': refusal.sender_fault,
                                     'Code': refusal.query_code, 'Message': refusal.message})
    # An empty list may be missing: M says neither is required, botocore's are.
    return {key: value for key, value in answer.items() if value}


def check_ids(queue, entry):
    """What makes a whole batch fail on a FIFO queue when it is missing in one entry."""
    group, dedup = entry.get('MessageGroupId'), entry.get('MessageDeduplicationId')
    for name, value in ('MessageGroupId', group), ('MessageDeduplicationId', dedup):
        # In one entry of a batch: ? (here the whole batch fails, as with a missing id)
        if value is not None and not rules.GROUP_ID.fullmatch(typed(value, name, str)):
            raise invalid(rules.BAD_ID, value, name)
    if queue.fifo:
        if group is None:
            raise invalid(rules.NO_GROUP)
        if dedup is None and queue.attributes['ContentBasedDeduplication'] != 'true':
            raise invalid(rules.NO_DEDUPLICATION)
    elif dedup is not None:
        raise invalid(rules.NOT_FOR_TYPE, dedup, 'MessageDeduplicationId')      # DG sqs-fair-queues; words: ?


def size_of(entry):
    """Bytes of body, names, types and values: M. What cannot be encoded is refused later."""
    size = len(entry['MessageBody'].encode(errors='replace'))
    for name, attribute in (entry.get('MessageAttributes') or {}).items():
        size += len(name.encode()) + len(attribute.get('DataType', '').encode())
        size += len((attribute.get('StringValue') or '').encode(errors='replace'))
        size += len(decode_binary(attribute))
    return size


def decode_binary(attribute):
    try:
        return base64.b64decode(attribute.get('BinaryValue') or '', validate=True)
    except ValueError:
        raise Refusal('SerializationException', message='BinaryValue is not base64') from None


def check_attributes(attributes):
    if len(attributes) > rules.MESSAGE_ATTRIBUTES:
        raise invalid('Number of message attributes [{}] exceeds the allowed maximum [10].', len(attributes))
    for name, attribute in attributes.items():
        kind = required(attribute, 'DataType')
        if not rules.ATTRIBUTE_NAME.fullmatch(name):
            raise invalid("Message (user) attribute name '{}' is invalid.", name)
        if not rules.ATTRIBUTE_TYPE.fullmatch(kind) or len(kind) > rules.ATTRIBUTE_TYPE_LENGTH:
            raise invalid("The type of message (user) attribute '{}' is invalid. You must use only the following supported "
                          'type prefixes: Binary, Number, String.', name)
        binary = kind.startswith('Binary')
        value = attribute.get('BinaryValue' if binary else 'StringValue')
        if not value:           # REC test_send_message_with_empty_string_attribute
            raise invalid("Message (user) attribute '{}' must contain a non-empty value of type '{}'.", name, kind)
        if not binary and not rules.CONTENT.fullmatch(value):
            raise Refusal('InvalidMessageContents')
        if kind.startswith('Number'):
            try:
                float(value)
            except ValueError:
                raise invalid("Can't cast the value of message (user) attribute '{}' to a number.", name) from None


def message_of(queue, entry, too_long=rules.TOO_LONG):
    """Checks what concerns a single message alone, and makes it. Returns it and its delay."""
    body = entry['MessageBody']
    attributes = entry.get('MessageAttributes') or {}
    if not rules.CONTENT.fullmatch(body):
        raise Refusal('InvalidMessageContents')
    check_attributes(attributes)
    if size_of(entry) > queue.number('MaximumMessageSize'):
        raise invalid(too_long, queue.number('MaximumMessageSize'))
    delay = number(entry, 'DelaySeconds', 0, 900, None, 'DelaySeconds must be >= 0 and <= 900.')
    if queue.fifo and delay:
        raise invalid(rules.NOT_FOR_TYPE, delay, 'DelaySeconds')
    trace = None
    for name, attribute in (entry.get('MessageSystemAttributes') or {}).items():
        if name != rules.TRACE_HEADER or attribute.get('DataType') != 'String' or not attribute.get('StringValue'):
            raise invalid("Message system attribute name '{}' is invalid.", name)
        trace = attribute['StringValue']
    group, dedup = entry.get('MessageGroupId'), entry.get('MessageDeduplicationId')
    if queue.fifo and dedup is None:
        dedup = hashlib.sha256(body.encode()).hexdigest()       # M ContentBasedDeduplication
    return Message(body, group, dedup, attributes, trace), (delay or None) if queue.fifo else delay


def send(queue, entry, number_of_request, **words):
    message, delay = message_of(queue, entry, **words)
    message_id, seq = queue.send(message, delay, number_of_request)
    answer = {'MessageId': message_id, 'MD5OfMessageBody': message.md5}
    if message.attributes_md5:
        answer['MD5OfMessageAttributes'] = message.attributes_md5
    if message.trace:
        answer['MD5OfMessageSystemAttributes'] = md5_of_attributes(entry['MessageSystemAttributes'])
    if queue.fifo:
        answer['SequenceNumber'] = str(seq)
    return answer


def check_body(entry):
    if not required(entry, 'MessageBody'):
        # REC test_send_empty_message; in one entry of a batch: ? (here the whole batch fails)
        raise Refusal('MissingParameter', message='The request must contain the parameter MessageBody.')
    for name, attribute in typed(entry.get('MessageAttributes') or {}, 'MessageAttributes', dict).items():
        typed(attribute, name, dict)


@operation
def SendMessage(sqs, request, call):
    queue = queue_of(sqs, request)
    check_body(request)
    if queue.fifo and request.get('MessageGroupId') is None:
        # Another code than in a batch: REC test_posting_to_fifo_requires_deduplicationid_group_id
        raise Refusal('MissingParameter', message=rules.NO_GROUP)
    check_ids(queue, request)
    limit_rate(sqs, queue, 'SendMessage')
    return send(queue, request, call.number)


@operation
def SendMessageBatch(sqs, request, call):
    queue = queue_of(sqs, request)
    entries = required(request, 'Entries', list)
    check_batch(entries)
    for entry in entries:
        check_body(entry)
    total = sum(map(size_of, entries))
    if total > rules.MESSAGE_BYTES:
        raise Refusal('BatchRequestTooLong', total)
    for entry in entries:
        check_ids(queue, entry)
    limit_rate(sqs, queue, 'SendMessage')
    # REC test_send_batch_message_size: other words than for a single message
    words = rules.TOO_LONG.replace('are invalid', 'cannot be validated')
    return batch(entries, call, lambda entry: send(queue, entry, call.number, too_long=words))


@operation
async def ReceiveMessage(sqs, request, call):
    queue = queue_of(sqs, request)
    limit = number(request, 'MaxNumberOfMessages', 1, 10, 1, 'Must be between 1 and 10, if provided.')
    wait = number(request, 'WaitTimeSeconds', 0, 20, queue.number('ReceiveMessageWaitTimeSeconds'),
                  'Must be >= 0 and <= 20, if provided.')
    visibility = number(request, 'VisibilityTimeout', 0, rules.MAX_VISIBILITY, queue.number('VisibilityTimeout'),
                        'Must be >= 0 and <= 43200, if provided.')
    limit_rate(sqs, queue, 'ReceiveMessage')
    if not queue.fifo and queue.in_flight >= rules.IN_FLIGHT and not wait:
        raise Refusal('OverLimit')                  # only a standard queue, only a short poll: DG23 sqs-visibility-timeout
    system = request.get('MessageSystemAttributeNames') or request.get('AttributeNames') or []
    names = request.get('MessageAttributeNames') or []
    attempt = request.get('ReceiveRequestAttemptId')
    messages = await queue.receive(limit, visibility, wait, attempt, call.gone)
    # No key when there is none: REC test_receive_empty_queue
    return {'Messages': [delivered(sqs, message, system, names) for message in messages]} if messages else {}


def delivered(sqs, message, system, names):
    out = {'MessageId': message.id, 'ReceiptHandle': message.handle, 'MD5OfBody': message.md5, 'Body': message.body}
    known = {
        'SenderId': 'AIDAFAKESENDER',
        'SentTimestamp': str(int(message.sent_at * 1000)),
        'ApproximateReceiveCount': str(message.receive_count),
        'ApproximateFirstReceiveTimestamp': str(int(message.first_received_at * 1000)),
        'MessageGroupId': message.group,
        'MessageDeduplicationId': message.dedup,
        'SequenceNumber': str(message.seq) if message.dedup else None,
        'AWSTraceHeader': message.trace,
        'DeadLetterQueueSourceArn': message.source_arn,
    }
    attributes = {k: v for k, v in known.items() if v is not None and (k in system or 'All' in system)}
    if attributes:
        out['Attributes'] = attributes
    everything = 'All' in names or '.*' in names
    prefixes = tuple(name[:-1] for name in names if name.endswith('.*'))
    wanted = {k: v for k, v in message.attributes.items()
              if everything or k in names or (prefixes and k.startswith(prefixes))}
    if wanted:
        out['MessageAttributes'] = wanted
        out['MD5OfMessageAttributes'] = md5_of_attributes(wanted)
    return out


@operation
def DeleteMessage(sqs, request, call):
    queue = queue_of(sqs, request)
    limit_rate(sqs, queue, 'DeleteMessage')
    queue.delete(required(request, 'ReceiptHandle'))
    return {}


@operation
def DeleteMessageBatch(sqs, request, call):
    queue = queue_of(sqs, request)
    entries = required(request, 'Entries', list)
    check_batch(entries)
    limit_rate(sqs, queue, 'DeleteMessage')
    return batch(entries, call, lambda entry: queue.delete(required(entry, 'ReceiptHandle')))


def visibility_of(request):
    required(request, 'VisibilityTimeout', int)
    return number(request, 'VisibilityTimeout', 0, rules.MAX_VISIBILITY, None, 'Must be between 0 and 43200, if provided.')


@operation
def ChangeMessageVisibility(sqs, request, call):
    queue_of(sqs, request).change_visibility(required(request, 'ReceiptHandle'), visibility_of(request))
    return {}


@operation
def ChangeMessageVisibilityBatch(sqs, request, call):
    queue = queue_of(sqs, request)
    entries = required(request, 'Entries', list)
    check_batch(entries)
    return batch(entries, call,
                 lambda entry: queue.change_visibility(required(entry, 'ReceiptHandle'), visibility_of(entry)))


# Queues


def check_queue_attributes(sqs, fifo, attributes):
    known = {**rules.QUEUE_ATTRIBUTES, **rules.FIFO_ATTRIBUTES} if fifo else rules.QUEUE_ATTRIBUTES
    for name, value in attributes.items():
        if name not in known:
            if name in ('DeduplicationScope', 'FifoThroughputLimit'):   # REC test_create_standard_queue_with_fifo_attribute
                raise Refusal('InvalidAttributeName',
                              message='You can specify the %s only when FifoQueue is set to true.' % name)
            raise Refusal('InvalidAttributeName', message='Unknown Attribute %s.' % name)
        kind, low, high, _ = known[name]
        bad = Refusal('InvalidAttributeValue', message='Invalid value for the parameter %s.' % name)
        typed(value, name, str)
        if kind is int and not (value.isdecimal() and low <= int(value) <= high):
            raise bad
        if kind is bool and value not in ('true', 'false'):
            raise bad
        if isinstance(kind, tuple) and value not in kind:
            raise bad
    if attributes.get('RedrivePolicy'):
        check_redrive_policy(sqs, fifo, attributes['RedrivePolicy'])


def check_redrive_policy(sqs, fifo, text):
    bad = 'Value %s for parameter RedrivePolicy is invalid. Reason: ' % text.replace('{', '{{').replace('}', '}}')
    try:
        policy = json.loads(text)
        arn, count = policy['deadLetterTargetArn'], int(policy['maxReceiveCount'])
    except (ValueError, TypeError, KeyError):
        raise invalid(bad + 'Redrive policy does not contain mandatory attributes or is not valid JSON.') from None
    if not rules.MAX_RECEIVE_COUNT[0] <= count <= rules.MAX_RECEIVE_COUNT[1]:
        raise invalid(bad + 'Invalid value for maxReceiveCount: {}, valid values are from 1 to 1000 both inclusive.', count)
    dead = sqs.by_arn(arn)
    if dead is None:
        raise invalid(bad + 'Dead letter target does not exist.')
    if dead.fifo != fifo:
        raise invalid(bad + 'Dead-letter queue must be same type of queue as the source.')


@operation
def CreateQueue(sqs, request, call):
    name = required(request, 'QueueName')
    attributes = dict(typed(request.get('Attributes') or {}, 'Attributes', dict))
    fifo = attributes.get('FifoQueue') == 'true'
    if not rules.QUEUE_NAME.fullmatch(name) or fifo != name.endswith('.fifo'):
        raise invalid('Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length'
                      if not fifo else 'The name of a FIFO queue can only include alphanumeric characters, hyphens, or '
                      'underscores, must end with .fifo suffix and be 1 to 80 in length.')
    if not fifo and 'FifoQueue' in attributes:
        raise Refusal('InvalidAttributeName', message='Unknown Attribute FifoQueue.')     # REC test_set_unsupported_attribute_fifo
    check_queue_attributes(sqs, fifo, attributes)
    known = sqs.queues.get(name)
    if known:
        for key, value in attributes.items():
            if known.attributes.get(key) != value:
                raise Refusal('QueueNameExists', key)
    elif sqs.clock.now() - sqs.deleted.get(name, -1e9) < rules.DELETED_NAME_INTERVAL:
        raise Refusal('QueueDeletedRecently')
    else:
        table = {**rules.QUEUE_ATTRIBUTES, **(rules.FIFO_ATTRIBUTES if fifo else {})}
        defaults = {key: str(value).lower() if kind is bool else str(value)
                    for key, (kind, _, _, value) in table.items() if value is not None}
        sqs.queues[name] = Queue(sqs, name, {**defaults, **attributes})
    return {'QueueUrl': sqs.url_of(name)}


@operation
def DeleteQueue(sqs, request, call):
    queue = queue_of(sqs, request)
    del sqs.queues[queue.name]
    sqs.deleted[queue.name] = sqs.clock.now()
    return {}


@operation
def GetQueueUrl(sqs, request, call):
    name = required(request, 'QueueName')
    if name not in sqs.queues or request.get('QueueOwnerAWSAccountId', sqs.account) != sqs.account:
        raise Refusal('QueueDoesNotExist')
    return {'QueueUrl': sqs.url_of(name)}


@operation
def GetQueueAttributes(sqs, request, call):
    queue = queue_of(sqs, request)
    counts = queue.counts()
    known = {
        **queue.attributes,
        'QueueArn': queue.arn,
        'ApproximateNumberOfMessages': str(counts['visible']),
        'ApproximateNumberOfMessagesNotVisible': str(counts['in_flight']),
        'ApproximateNumberOfMessagesDelayed': str(counts['delayed']),
        'CreatedTimestamp': str(queue.created),
        'LastModifiedTimestamp': str(queue.modified),
    }
    names = typed(request.get('AttributeNames') or [], 'AttributeNames', list)
    for name in names:
        if name != 'All' and name not in known and name not in {**rules.QUEUE_ATTRIBUTES, **rules.FIFO_ATTRIBUTES}:
            raise Refusal('InvalidAttributeName', message='Unknown Attribute %s.' % name)
    wanted = {k: v for k, v in known.items() if 'All' in names or k in names}
    return {'Attributes': wanted} if wanted else {}


@operation
def SetQueueAttributes(sqs, request, call):
    queue = queue_of(sqs, request)
    attributes = required(request, 'Attributes', dict)
    if 'FifoQueue' in attributes:       # REC test_set_unsupported_attribute_fifo
        if not queue.fifo:
            raise Refusal('InvalidAttributeName', message='Unknown Attribute FifoQueue.')
        if attributes['FifoQueue'] != 'true':
            raise Refusal('InvalidAttributeValue', message='Invalid value for the parameter FifoQueue. Reason: '
                          'Modifying queue type is not supported.')
    check_queue_attributes(sqs, queue.fifo, attributes)
    queue.attributes.update(attributes)
    for name in [name for name, value in queue.attributes.items() if value == '']:
        del queue.attributes[name]      # how a RedrivePolicy is taken away
    queue.modified = int(sqs.clock.now())
    queue.wake()
    return {}


@operation
def PurgeQueue(sqs, request, call):
    queue = queue_of(sqs, request)
    now = sqs.clock.now()
    if queue.purged and now - queue.purged < rules.PURGE_INTERVAL:
        raise Refusal('PurgeQueueInProgress', queue.name)
    queue.purged = now
    for message in queue.messages.values():
        message.state = 'gone'
    queue.empty()
    return {}


# Redrive: DG sqs-configure-dead-letter-queue-redrive, texts REC test_sqs_move_task.py


@operation
def StartMessageMoveTask(sqs, request, call):
    source = sqs.by_arn(required(request, 'SourceArn'))
    if source is None:
        raise Refusal('ResourceNotFoundException',
                      message="The resource that you specified for the SourceArn parameter doesn't exist.")
    destination = None
    if request.get('DestinationArn'):
        destination = sqs.by_arn(request['DestinationArn'])
        if destination is None:
            raise Refusal('ResourceNotFoundException',
                          message="The resource that you specified for the DestinationArn parameter doesn't exist.")
    rate = number(request, 'MaxNumberOfMessagesPerSecond', 1, rules.MOVE_TASK_RATE, None, 'Must be between 1 and 500.')
    if not any(source is (q.redrive_policy() or [None])[0] for q in sqs.queues.values()):
        raise invalid('Source queue must be configured as a Dead Letter Queue.')
    if any(task['source'] is source and task['Status'] == 'RUNNING' for task in sqs.move_tasks):
        raise invalid('There is already a task running. Only one active task is allowed for a source queue arn at a given '
                      'time.')
    task = {'source': source, 'handle': base64.b64encode(json.dumps(
                {'taskId': str(uuid.uuid4()), 'sourceArn': source.arn}).encode()).decode(),
            'Status': 'RUNNING', 'SourceArn': source.arn, 'ApproximateNumberOfMessagesMoved': 0,
            'ApproximateNumberOfMessagesToMove': source.counts()['visible'],
            'StartedTimestamp': int(sqs.clock.now() * 1000)}
    if destination:
        task['DestinationArn'] = destination.arn
    if rate:
        task['MaxNumberOfMessagesPerSecond'] = rate
    sqs.move_tasks.insert(0, task)
    sqs.background(move_messages(sqs, task, destination, rate))
    return {'TaskHandle': task['handle']}


async def move_messages(sqs, task, destination, rate):
    source = task['source']
    source.expire()
    for message in sorted((m for m in source.messages.values() if m.state == 'waiting'), key=lambda m: m.seq):
        if task['Status'] != 'RUNNING':
            break
        to = destination or (message.source_arn and sqs.by_arn(message.source_arn))
        if message.state != 'waiting' or not to:
            continue
        source.forget(message)
        # A new message, with a new time: M StartMessageMoveTask
        moved = Message(message.body, message.group, message.dedup, message.attributes, message.trace)
        moved.id = str(uuid.uuid4())
        to.put(moved, sqs.clock.now(), 0)
        to.accepted.append(to.record(moved, moved.sent_at, None, moved.id, moved.seq))
        task['ApproximateNumberOfMessagesMoved'] += 1
        await asyncio.sleep(1 / rate if rate else 0)
    task['Status'] = 'CANCELLED' if task['Status'] == 'CANCELLING' else 'COMPLETED'


@operation
def ListMessageMoveTasks(sqs, request, call):
    source = sqs.by_arn(required(request, 'SourceArn'))
    limit = number(request, 'MaxResults', 1, 10, 1, 'Must be between 1 and 10.')
    if source is None:
        raise Refusal('ResourceNotFoundException',
                      message="The resource that you specified for the SourceArn parameter doesn't exist.")
    tasks = [task for task in sqs.move_tasks if task['source'] is source][:limit]
    return {'Results': [{**{k: v for k, v in task.items() if k[0].isupper()},
                         **({'TaskHandle': task['handle']} if task['Status'] == 'RUNNING' else {})} for task in tasks]}


@operation
def CancelMessageMoveTask(sqs, request, call):
    handle = required(request, 'TaskHandle')
    for task in sqs.move_tasks:
        if task['handle'] == handle and task['Status'] == 'RUNNING':
            task['Status'] = 'CANCELLING'
            return {'ApproximateNumberOfMessagesMoved': task['ApproximateNumberOfMessagesMoved']}
    raise Refusal('ResourceNotFoundException', message='Task does not exist.')
