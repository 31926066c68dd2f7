"""Tests test/fake_sqs.py as a stranger: over the wire, signed by botocore. Prints TAP.

Usage: selftest.py "$(what the fake printed)": it must have been started with --tls. Each rule once, and each failure
that can be planted. Nothing here waits longer than a moment: the fake's clock is set instead.
"""
import email.utils
import hashlib
import http.client
import json
import socket
import ssl
import sys
import threading
import time
import traceback
import urllib.parse

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

FAKE = json.loads(sys.argv[1])
PORT = FAKE['http']
count = failures = 0


def ok(good, name, *shown):
    global count, failures
    count += 1
    failures += not good
    print('%s %d - %s' % ('ok' if good else 'not ok', count, name), flush=True)
    if not good:
        for line in shown:
            print('# %.500s' % (line,))


def eq(got, wanted, name):
    ok(got == wanted, name, 'got: %r' % (got,), 'wanted: %r' % (wanted,))


# The client


def signed(op, body, key=FAKE['access_key'], secret=FAKE['secret_key'], token=None, region=FAKE['region'],
           service='sqs', headers=(), port=PORT):
    headers = {'Content-Type': 'application/x-amz-json-1.0', 'X-Amz-Target': 'AmazonSQS.' + op,
               'X-Amzn-Query-Mode': 'true', **dict(headers)}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = AWSRequest('POST', 'http://127.0.0.1:%d/' % port, headers, data)
    SigV4Auth(Credentials(key, secret, token), service, region).add_auth(request)
    return dict(request.headers.items()), data


class Answer:
    def __init__(self, response, body):
        self.status, self.headers, self.body = response.status, response.headers, body
        try:
            self.json = json.loads(body)
        except ValueError:
            self.json = None

    def code(self):
        error = (self.headers['x-amzn-query-error'] or '').split(';')[0]
        return '%d %s' % (self.status, error) if error else str(self.status)

    def __getitem__(self, name):
        return (self.json or {}).get(name)


def http_call(method, path, headers=(), data=None, connection=None):
    connection = connection or http.client.HTTPConnection('127.0.0.1', PORT, timeout=20)
    connection.request(method, path, data, dict(headers))
    response = connection.getresponse()
    return Answer(response, response.read())


def sqs(op, body, connection=None, **how):
    headers, data = signed(op, body, **how)
    return http_call('POST', '/', headers, data, connection)


def control(command, **arguments):
    answer = http_call('POST', '/_control/' + command, (), json.dumps(arguments).encode())
    assert answer.status == 200, answer.body
    return answer.json


queues = 0


def queue(fifo=True, **attributes):
    global queues
    queues += 1
    name = 'q%d' % queues + ('.fifo' if fifo else '')
    if fifo:
        attributes['FifoQueue'] = 'true'
    answer = sqs('CreateQueue', {'QueueName': name, 'Attributes': attributes})
    assert answer.status == 200, answer.body
    return answer['QueueUrl']


def name_of(url):
    return url.rsplit('/', 1)[-1]


def entry(n, group='g', dedup=None, body=None, **more):
    return {'Id': 'e%s' % n, 'MessageBody': 'm%s' % n if body is None else body,
            'MessageGroupId': group, 'MessageDeduplicationId': str(n) if dedup is None else dedup, **more}


def send(url, *entries, **how):
    return sqs('SendMessageBatch', {'QueueUrl': url, 'Entries': list(entries)}, **how)


def receive(url, limit=10, **more):
    return sqs('ReceiveMessage', {'QueueUrl': url, 'MaxNumberOfMessages': limit, **more})['Messages'] or []


def bodies(messages):
    return ' '.join(m['Body'] for m in messages)


def delete(url, *messages):
    return sqs('DeleteMessageBatch', {'QueueUrl': url, 'Entries': [
        {'Id': str(n), 'ReceiptHandle': m['ReceiptHandle']} for n, m in enumerate(messages)]})


def ids(answer, which):
    return ' '.join('%s%s' % (e['Id'], ':' + e['Code'] if which == 'Failed' else '') for e in answer[which] or [])


def accepted(url):
    return bodies({'Body': m['body']} for m in control('accepted', queue=name_of(url))['messages'])


# Tests


def signatures():
    url = queue()
    body = {'QueueUrl': url}
    eq(sqs('ReceiveMessage', body).code(), '200', 'a right signature is accepted')
    headers, data = signed('ReceiveMessage', body)
    bad = '403 SignatureDoesNotMatch'

    def post(data=data, path='/', **changed):
        new = {**headers, **{key.replace('_', '-'): value for key, value in changed.items()}}
        return http_call('POST', path, {k: v for k, v in new.items() if v is not None}, data).code()

    eq(post(data + b' '), bad, 'tampered body')
    eq(post(X_Amz_Target='AmazonSQS.DeleteQueue'), bad, 'tampered operation')
    eq(post(X_Amz_Security_Token='x'), '403 InvalidClientTokenId', 'a token that nobody gave')
    eq(post(X_Amz_Other='x'), bad, 'an x-amz header that is not signed')
    eq(post(X_Amz_Content_Sha256='0' * 64), bad, 'another hash than that of the body')
    eq(post(Authorization=headers['Authorization'][:-1] + ('0' if headers['Authorization'][-1] != '0' else '1')), bad,
       'tampered signature')
    eq(post(Authorization=headers['Authorization'].replace('host;', '')), bad, 'host is not signed')
    eq(post(Authorization='AWS4-HMAC-SHA256 Credential=x'), '403 IncompleteSignature', 'half a header')
    eq(post(Authorization=None), '403 MissingAuthenticationToken', 'no signature')
    eq(post(X_Amz_Date='20200101T000000Z'), bad, 'tampered date')
    eq(sqs('ReceiveMessage', body, headers={'X-Amz-Content-SHA256': '0' * 64}).code(), bad, 'even when it is signed')
    eq(sqs('ReceiveMessage', body, secret='wrong').code(), bad, 'wrong secret')
    eq(sqs('ReceiveMessage', body, key='AKIAUNKNOWN').code(), '403 InvalidClientTokenId', 'unknown access key')
    eq(sqs('ReceiveMessage', body, region='eu-west-1').code(), bad, 'wrong region')
    eq(sqs('ReceiveMessage', body, service='sns').code(), bad, 'wrong service')
    answer = sqs('ReceiveMessage', body, secret='wrong')
    eq(answer['__type'].split('#')[-1], 'InvalidSignatureException', 'both names of an error')
    control('clock', skew=1000)
    answer = sqs('ReceiveMessage', body)
    eq(answer.code(), bad, 'a clock that is 1000 s off')
    ok('Signature expired' in answer['message'], 'says so', answer['message'])
    control('clock', skew=-1000)
    ok('not yet current' in sqs('ReceiveMessage', body)['message'], 'and in the other direction')
    control('clock', skew=0)

    control('credentials', key='ASIAX', secret='s', token='t', expires_in=60)
    temporary = {'key': 'ASIAX', 'secret': 's'}
    eq(sqs('ReceiveMessage', body, token='t', **temporary).code(), '200', 'temporary credentials')
    eq(sqs('ReceiveMessage', body, token='u', **temporary).code(), '403 InvalidClientTokenId', 'with another token')
    eq(sqs('ReceiveMessage', body, **temporary).code(), '403 InvalidClientTokenId', 'without token')
    control('clock', skew=61)
    answer = sqs('ReceiveMessage', body, token='t', **temporary)
    eq((answer.code(), answer['__type'].split('#')[-1]), ('403 ExpiredToken', 'ExpiredTokenException'), 'expired')
    control('clock', skew=0)
    control('credentials', revoke=['ASIAX'])
    eq(sqs('ReceiveMessage', body, token='t', **temporary).code(), '403 InvalidClientTokenId', 'revoked')
    eq(sqs('Nonsense', body).code(), '404 InvalidAction', 'unknown operation')
    eq(sqs('ReceiveMessage', b'{').code(), '400 MalformedInput', 'not JSON')


def limits():
    url, standard = queue(), queue(fifo=False)
    small = queue(MaximumMessageSize='1024')
    value = {'DataType': 'String', 'StringValue': 'v'}

    def batch(name, entries, code, to=url):
        eq(send(to, *entries).code(), code, name)

    def failed(name, change, code, to=url, batch_of=3):
        entries = [entry(name + str(n)) for n in range(batch_of)]
        entries[1].update(change)
        for n, e in enumerate(entries):
            e.update(Id=str(n), MessageDeduplicationId=str(time.time_ns()) + str(n))
        answer = send(to, *entries)
        eq((ids(answer, 'Successful'), ids(answer, 'Failed')), ('0 2', '1:' + code), 'only the entry fails: ' + name)

    batch('no entries', [], '400 AWS.SimpleQueueService.EmptyBatchRequest')
    batch('11 entries', [entry(n) for n in range(11)], '400 AWS.SimpleQueueService.TooManyEntriesInBatchRequest')
    batch('same id', [entry(1), entry(1)], '400 AWS.SimpleQueueService.BatchEntryIdsNotDistinct')
    for bad in '', 'x' * 81, 'a.b':
        batch('bad entry id of %d' % len(bad), [{**entry(1), 'Id': bad}], '400 AWS.SimpleQueueService.InvalidBatchEntryId')
    batch('80 characters', [{**entry(1), 'Id': 'x' * 80}], '200')
    batch('1 MiB in all', [entry('f%d' % n, body='x' * 104857) for n in range(10)], '200')
    batch('more', [entry('h%d' % n, body='x' * 104858) for n in range(10)], '400 AWS.SimpleQueueService.BatchRequestTooLong')
    batch('without group', [entry(2), {**entry(3), 'MessageGroupId': None}], '400 InvalidParameterValue')
    batch('without deduplication id', [entry(2), {**entry(3), 'MessageDeduplicationId': None}], '400 InvalidParameterValue')
    batch('empty body', [entry(2, body='')], '400 MissingParameter')
    for bad in 'a b', 'x' * 129, '', '\u00e4':
        batch('group id of %d' % len(bad), [entry(2, group=bad)], '400 InvalidParameterValue')
        batch('deduplication id of %d' % len(bad), [entry(2, dedup=bad)], '400 InvalidParameterValue')
    batch('128 characters', [entry(2, group='!"#$%&\'()*+,-./:;<=>?@[\\]^_`{|}~' * 4, dedup='x' * 128)], '200')
    batch('no such queue', [entry(1)], '400 AWS.SimpleQueueService.NonExistentQueue', url + 'x')
    batch('deduplication id on a standard queue', [entry(1)], '400 InvalidParameterValue', standard)
    eq(sqs('SendMessage', {'QueueUrl': url, 'MessageBody': 'x'}).code(), '400 MissingParameter', 'a single one without group')
    eq(sqs('SendMessage', {'QueueUrl': url}).code(), '400 MissingParameter', 'without body')

    failed('control character', {'MessageBody': 'a\x01'}, 'InvalidMessageContents')
    failed('U+FFFE', {'MessageBody': '\ufffe'}, 'InvalidMessageContents')
    failed('half of a pair', {'MessageBody': '\ud800'}, 'InvalidMessageContents')
    failed('too long for the queue', {'MessageBody': 'x' * 1025}, 'InvalidParameterValue', small)
    failed('in bytes', {'MessageBody': '\u00e4' * 513}, 'InvalidParameterValue', small)
    failed('with attributes', {'MessageBody': 'x' * 1020, 'MessageAttributes': {'a': value}}, 'InvalidParameterValue', small)
    failed('delay on FIFO', {'DelaySeconds': 5}, 'InvalidParameterValue')
    failed('11 attributes', {'MessageAttributes': {'a%d' % n: value for n in range(11)}}, 'InvalidParameterValue')
    for bad in 'aws.x', 'AMAZON.x', '.x', 'x.', 'a..b', 'a b', 'x' * 257:
        failed('attribute name %.9s' % bad, {'MessageAttributes': {bad: value}}, 'InvalidParameterValue')
    failed('attribute type', {'MessageAttributes': {'a': {'DataType': 'Text', 'StringValue': 'v'}}}, 'InvalidParameterValue')
    failed('empty attribute', {'MessageAttributes': {'a': {**value, 'StringValue': ''}}}, 'InvalidParameterValue')
    failed('number', {'MessageAttributes': {'a': {'DataType': 'Number', 'StringValue': 'v'}}}, 'InvalidParameterValue')
    failed('system attribute', {'MessageSystemAttributes': {'Other': value}}, 'InvalidParameterValue')

    good = send(url, entry('u', body='\t\n\r \ud7ff\ue000\ufffd\U00010000\U0010ffff \u00e4', MessageAttributes={
        'n.1': {'DataType': 'Number.int', 'StringValue': '1'}, 's': value,
        'b': {'DataType': 'Binary', 'BinaryValue': 'AAE='}},
        MessageSystemAttributes={'AWSTraceHeader': {'DataType': 'String', 'StringValue': 'Root=1-2-3'}}, DelaySeconds=0))
    eq(ids(good, 'Successful'), 'eu', 'all characters, all kinds of attributes')
    # By names; lengths in 4 bytes, 1 before a string, 2 before a binary value: DG sqs-message-metadata
    eq(good['Successful'][0]['MD5OfMessageAttributes'], hashlib.md5(
        b'\0\0\0\1b\0\0\0\6Binary\2\0\0\0\2\0\1' b'\0\0\0\3n.1\0\0\0\nNumber.int\1\0\0\0\0011'
        b'\0\0\0\1s\0\0\0\6String\1\0\0\0\1v').hexdigest(), 'their digest')

    for name, change, code in [
            ('11 messages', {'MaxNumberOfMessages': 11}, '400 InvalidParameterValue'),
            ('0 messages', {'MaxNumberOfMessages': 0}, '400 InvalidParameterValue'),
            ('21 s', {'WaitTimeSeconds': 21}, '400 InvalidParameterValue'),
            ('timeout', {'VisibilityTimeout': 43201}, '400 InvalidParameterValue'),
            ('a string', {'MaxNumberOfMessages': '1'}, '400 MalformedInput')]:
        eq(sqs('ReceiveMessage', {'QueueUrl': url, **change}).code(), code, 'receive: ' + name)
    for name, attributes, code in [
            ('x' * 81, {}, 'InvalidParameterValue'), ('a.fifo', {}, 'InvalidParameterValue'),
            ('a', {'FifoQueue': 'true'}, 'InvalidParameterValue'), ('a', {'DelaySeconds': '901'}, 'InvalidAttributeValue'),
            ('a', {'MaximumMessageSize': '1048577'}, 'InvalidAttributeValue'), ('a', {'Nix': '1'}, 'InvalidAttributeName'),
            ('a', {'ContentBasedDeduplication': 'true'}, 'InvalidAttributeName'),
            (name_of(small), {'FifoQueue': 'true', 'MaximumMessageSize': '2048'}, 'QueueAlreadyExists'),
            (name_of(small), {'FifoQueue': 'true', 'MaximumMessageSize': '1024'}, '')]:
        eq(sqs('CreateQueue', {'QueueName': name, 'Attributes': attributes}).code(), '400 ' + code if code else '200',
           'create %.9s %s' % (name, attributes))
    eq(sqs('GetQueueUrl', {'QueueName': name_of(small)})['QueueUrl'], small, 'url of a queue')
    eq(sqs('GetQueueAttributes', {'QueueUrl': small}).json, {}, 'attributes: none unless asked for')
    eq(sqs('GetQueueAttributes', {'QueueUrl': small, 'AttributeNames': ['MaximumMessageSize', 'FifoQueue']})['Attributes'],
       {'MaximumMessageSize': '1024', 'FifoQueue': 'true'}, 'some')
    sqs('SetQueueAttributes', {'QueueUrl': small, 'Attributes': {'MaximumMessageSize': '2048'}})
    eq(ids(send(small, entry('big', body='x' * 2048)), 'Successful'), 'ebig', 'set')
    eq(sqs('SetQueueAttributes', {'QueueUrl': small, 'Attributes': {'FifoQueue': 'false'}}).code(),
       '400 InvalidAttributeValue', 'FIFO for ever')
    sqs('DeleteQueue', {'QueueUrl': small})
    eq(send(small, entry(1)).code(), '400 AWS.SimpleQueueService.NonExistentQueue', 'deleted')
    again = {'QueueName': name_of(small), 'Attributes': {'FifoQueue': 'true'}}
    eq(sqs('CreateQueue', again).code(), '400 AWS.SimpleQueueService.QueueDeletedRecently', 'its name needs 60 s')
    control('clock', advance=61)
    eq(sqs('CreateQueue', again).code(), '200', 'then it is free')
    control('settings', fifo_calls_per_second=3)
    codes = {send(url, entry('r%d' % n)).code() for n in range(8)}
    ok('400 ThrottlingException' in codes and '200' in codes, 'the rate of a FIFO queue', codes)
    control('settings', fifo_calls_per_second=0)


def fifo():
    url = queue(VisibilityTimeout='30')
    first = send(url, *[entry('%s%d' % (g, n), group=g) for n in range(3) for g in 'ab'])
    eq(ids(first, 'Successful'), 'ea0 eb0 ea1 eb1 ea2 eb2', 'accepted')
    numbers = [int(e['SequenceNumber']) for e in first['Successful']]
    ok(numbers == sorted(set(numbers)), 'sequence numbers grow')
    m = receive(url, 2, MessageSystemAttributeNames=['All'])
    eq(bodies(m), 'ma0 ma1', 'several of one group, in order')
    eq({k: m[0]['Attributes'][k] for k in ('MessageGroupId', 'MessageDeduplicationId', 'ApproximateReceiveCount')},
       {'MessageGroupId': 'a', 'MessageDeduplicationId': 'a0', 'ApproximateReceiveCount': '1'}, 'attributes')
    eq(bodies(receive(url)), 'mb0 mb1 mb2', 'the group is locked')
    eq(receive(url), [], 'all are')
    delete(url, m[0])
    eq(receive(url), [], 'still')
    delete(url, m[1])
    eq(bodies(receive(url)), 'ma2', 'until the last is deleted')
    again = send(url, entry('a0', group='c'), entry('new1'), {**entry('new1'), 'Id': 'twice'})
    eq(again['Successful'][0]['MessageId'], first['Successful'][0]['MessageId'],
       'a duplicate is not delivered, though received and deleted, and in another group')
    eq(bodies(receive(url)), 'mnew1', 'once also within a batch')
    eq([m['dedup'] for m in control('duplicates', queue=name_of(url))['messages']], ['a0', 'new1'], 'recorded')
    control('clock', advance=299)
    send(url, entry('a0', group='c'))
    eq(len(control('duplicates', queue=name_of(url))['messages']), 3, '299 s later')
    control('clock', advance=2)
    send(url, entry('a0', group='c'))
    eq(bodies(m for m in receive(url) if m['Body'] == 'ma0'), 'ma0', '301 s later it is delivered again')

    url = queue(DeduplicationScope='messageGroup', ContentBasedDeduplication='true')
    send(url, entry('x', group='a', dedup='d'), entry('y', group='b', dedup='d'))
    eq(bodies(receive(url)), 'mx my', 'deduplication per group')
    send(url, *[{'Id': str(n), 'MessageBody': 'same', 'MessageGroupId': 'c'} for n in range(2)])
    eq(bodies(receive(url)), 'same', 'by content')

    url = queue(VisibilityTimeout='30')
    send(url, *[entry(n) for n in range(4)])
    m = receive(url, 3)
    control('clock', advance=31)
    answer = sqs('DeleteMessage', {'QueueUrl': url, 'ReceiptHandle': m[0]['ReceiptHandle']})
    eq(answer.code(), '400 InvalidParameterValue', 'delete after the timeout')
    ok('receipt handle has expired' in answer['message'], 'says so')
    m2 = receive(url, 2, VisibilityTimeout=100, MessageSystemAttributeNames=['ApproximateReceiveCount'])
    eq(bodies(m2), 'm0 m1', 'they come again')
    eq(m2[0]['Attributes']['ApproximateReceiveCount'], '2', 'for the second time')
    eq(ids(delete(url, m[0], m2[1]), 'Failed'), '0:InvalidParameterValue', 'the old handle deletes nothing')
    eq(sqs('DeleteMessage', {'QueueUrl': url, 'ReceiptHandle': m2[1]['ReceiptHandle']}).code(), '200', 'deleting twice')
    change = {'QueueUrl': url, 'ReceiptHandle': m2[0]['ReceiptHandle']}
    control('clock', advance=1)
    eq([sqs('ChangeMessageVisibility', {**change, 'VisibilityTimeout': n}).status for n in (43200, 43198)], [400, 200],
       'at most 12 h from the receive')
    eq(ids(sqs('ChangeMessageVisibilityBatch', {'QueueUrl': url, 'Entries': [
        {'Id': 'a', 'ReceiptHandle': m2[0]['ReceiptHandle'], 'VisibilityTimeout': 0},
        {'Id': 'b', 'ReceiptHandle': m2[1]['ReceiptHandle'], 'VisibilityTimeout': 0}]}), 'Failed'),
       'b:InvalidParameterValue', 'given back; what is gone is an error')
    eq(bodies(receive(url)), 'm0 m2 m3', 'in its place')
    eq(sqs('DeleteMessage', {'QueueUrl': url, 'ReceiptHandle': 'garbage'}).code(), '400 ReceiptHandleIsInvalid', 'garbage')

    send(url, entry('more', group='h'), entry('more2', group='h'))
    m = receive(url, 2)
    sqs('ChangeMessageVisibility', {'QueueUrl': url, 'ReceiptHandle': m[0]['ReceiptHandle'], 'VisibilityTimeout': 0})
    eq((bodies(m), receive(url)), ('mmore mmore2', []), 'locked also when the first is back before the second')
    delete(url, m[1])
    eq(bodies(receive(url)), 'mmore', 'until that is deleted')

    url = queue()
    send(url, *[entry(n) for n in range(3)])
    m = receive(url, 2, ReceiveRequestAttemptId='x')
    eq([n['ReceiptHandle'] for n in receive(url, 2, ReceiveRequestAttemptId='x')], [n['ReceiptHandle'] for n in m],
       'the same attempt gets the same again')
    eq(receive(url, 2, ReceiveRequestAttemptId='y'), [], 'another does not')
    delete(url, m[0])
    eq(receive(url, 2, ReceiveRequestAttemptId='x'), [], 'nor after a delete')

    eq(sqs('PurgeQueue', {'QueueUrl': url}).code(), '200', 'purge')
    eq(sqs('PurgeQueue', {'QueueUrl': url}).code(), '403 AWS.SimpleQueueService.PurgeQueueInProgress', 'not twice')
    control('clock', advance=60)
    eq(receive(url), [], 'all gone')

    url = queue(DelaySeconds='10', MessageRetentionPeriod='60')
    send(url, entry(1))
    eq(receive(url), [], 'delayed')
    control('clock', advance=11)
    eq(bodies(receive(url, VisibilityTimeout=0)), 'm1', 'then not')
    control('clock', advance=60)
    eq(receive(url), [], 'past its retention')


def standard():
    url = queue(fifo=False)
    send(url, *[{'Id': str(n), 'MessageBody': 'm%d' % n, 'MessageGroupId': 'tenant', 'DelaySeconds': n % 2} for n in range(4)])
    m = receive(url, 1)
    eq(bodies(m), 'm0', 'one')
    eq(bodies(receive(url)), 'm2', 'no lock by group')
    control('clock', advance=31)
    eq(sqs('DeleteMessage', {'QueueUrl': url, 'ReceiptHandle': m[0]['ReceiptHandle']}).code(), '200', 'late delete')
    eq(sorted(bodies(receive(url)).split()), ['m1', 'm2', 'm3'], 'deletes')
    control('clock', advance=31)
    m = receive(url, VisibilityTimeout=0)
    eq(sqs('ChangeMessageVisibility', {'QueueUrl': url, 'ReceiptHandle': m[0]['ReceiptHandle'], 'VisibilityTimeout': 5}).code(),
       '400 AWS.SimpleQueueService.MessageNotInflight', 'not in flight')


def dead_letters():
    dead = queue()
    dead_arn = sqs('GetQueueAttributes', {'QueueUrl': dead, 'AttributeNames': ['QueueArn']})['Attributes']['QueueArn']
    policy = json.dumps({'deadLetterTargetArn': dead_arn, 'maxReceiveCount': '2'})
    url = queue(RedrivePolicy=policy)
    eq(sqs('CreateQueue', {'QueueName': 'std', 'Attributes': {'RedrivePolicy': policy}}).code(), '400 InvalidParameterValue',
       'of another type')
    eq(sqs('CreateQueue', {'QueueName': 'std', 'Attributes': {'RedrivePolicy': policy.replace(':q', ':no')}}).code(),
       '400 InvalidParameterValue', 'no such')
    send(url, entry('bad'), entry('next'))
    seen = [bodies(receive(url, 1, VisibilityTimeout=0)) for _ in range(3)]
    eq(seen, ['mbad', 'mbad', 'mnext'], 'after two receives the next of the group comes')
    m = receive(dead, MessageSystemAttributeNames=['All'], VisibilityTimeout=0)
    eq(bodies(m), 'mbad', 'it is in the dead letter queue')
    eq((m[0]['Attributes']['MessageGroupId'], m[0]['Attributes']['MessageDeduplicationId']), ('g', m[0]['MessageId']),
       'with its group, and its own id for deduplication')
    source = 'arn:aws:sqs:%s:%s:%s' % (FAKE['region'], FAKE['account'], name_of(url))
    eq(m[0]['Attributes']['DeadLetterQueueSourceArn'], source, 'knows where it was')
    eq(sqs('StartMessageMoveTask', {'SourceArn': source}).code(), '400 InvalidParameterValue', 'redrive: not a dead letter queue')
    eq(sqs('StartMessageMoveTask', {'SourceArn': source + 'x'}).code(), '404 ResourceNotFoundException', 'no such')
    send(dead, entry('direct'))
    eq(sqs('StartMessageMoveTask', {'SourceArn': dead_arn, 'MaxNumberOfMessagesPerSecond': 1}).code(), '200', 'redrive')
    eq(sqs('StartMessageMoveTask', {'SourceArn': dead_arn}).code(), '400 InvalidParameterValue', 'one at a time')
    tasks = sqs('ListMessageMoveTasks', {'SourceArn': dead_arn})['Results']
    eq((len(tasks), tasks[0]['Status']), (1, 'RUNNING'), 'listed')
    eq(sqs('CancelMessageMoveTask', {'TaskHandle': tasks[0]['TaskHandle']}).code(), '200', 'cancelled')
    back = [m for m in control('accepted', queue=name_of(url))['messages'] if m['body'] == 'mbad']
    ok(len(back) == 2 and back[0]['message_id'] != back[1]['message_id'], 'moved back, under a new id', back)


def waiting():
    url = queue()
    start = time.monotonic()
    eq(receive(url, WaitTimeSeconds=1), [], 'long poll: nothing')
    ok(.9 < time.monotonic() - start < 5, 'in its time', time.monotonic() - start)
    threading.Timer(.1, lambda: send(url, entry(1))).start()
    start = time.monotonic()
    eq(bodies(receive(url, WaitTimeSeconds=10)), 'm1', 'woken by a message')
    ok(time.monotonic() - start < 4, 'at once')
    threading.Timer(.1, lambda: control('clock', advance=31)).start()
    eq(bodies(receive(url, WaitTimeSeconds=10)), 'm1', 'and by the end of a timeout')
    ok(time.monotonic() - start < 4, 'at once')


def broken(call):
    try:
        answer = call()
    except (http.client.HTTPException, OSError) as error:
        return type(error).__name__
    return answer.code()


def faults():
    url = queue()
    numbers = iter(range(1000, 2000))

    def one(**how):
        return send(url, entry(next(numbers)), **how)

    def planted(name, check, **spec):
        spec.setdefault('times', 1)
        control('plant', **spec)
        check(name)
        control('clear')

    def answers(wanted, **spec):
        planted('%s' % (spec,), lambda name: eq(one().code(), wanted, name), do='error', **spec)

    answers('403 RequestThrottled', code='RequestThrottled')
    answers('400 ThrottlingException', code='ThrottlingException')
    answers('503 ServiceUnavailable', code='ServiceUnavailable')
    answers('418 Teapot', code='Teapot', status=418)
    control('plant', do='error', code='RequestThrottled', status=429, retry_after=7, times=1)
    eq(one().headers['Retry-After'], '7', 'Retry-After')
    for how in 'close', 'reset':
        for when in 'before', 'after':
            n = len(accepted(url).split())
            planted('drop %s %s' % (how, when), lambda name: eq(
                broken(one), 'RemoteDisconnected' if how == 'close' else 'ConnectionResetError', name),
                do='drop', how=how, when=when)
            eq(len(accepted(url).split()) - n, int(when == 'after'), 'accepted: %s' % (when == 'after'))
    control('plant', do='error', code='InternalFailure', when='after', times=1)
    n = len(accepted(url).split())
    eq(one().code(), '500 InternalFailure', 'an error after accepting')
    eq(len(accepted(url).split()) - n, 1, 'accepted')

    def timed(name, call, low, high):
        start = time.monotonic()
        call()
        ok(low <= time.monotonic() - start < high, name, time.monotonic() - start)

    control('plant', do='delay', seconds=.2, times=1, group='slow')
    timed('a delay for one group', lambda: send(url, entry('s', group='slow')), .2, 5)
    hanging = control('plant', do='delay', group='stuck')['number']
    stuck = threading.Thread(target=send, args=(url, entry('stuck', group='stuck')))
    stuck.start()
    timed('others go on', one, 0, 5)
    ok(stuck.is_alive(), 'one hangs')
    control('clear', numbers=[hanging])
    stuck.join(10)
    ok(not stuck.is_alive() and 'mstuck' in accepted(url), 'until it is let go')
    control('plant', do='trickle', bytes_per_second=1000, times=1)
    timed('an answer that trickles', one, .1, 5)
    for kind, body, code in [('empty', b'', '200'), ('garbage', None, '200'), ('html', None, '502'), ('json', None, '200')]:
        control('plant', do='answer', kind=kind, status=int(code), times=1)
        answer = one()
        ok(answer.code() == code and (answer.body == body if body is not None else answer['Successful'] in (None, 'yes')),
           'answer: ' + kind, answer.body)
    control('plant', do='answer', text='{"a":1}', times=1)
    eq(one().json, {'a': 1}, 'answer: any text')
    control('plant', do='answer', kind='huge', times=1)
    ok(len(one().body) > 30e6, 'answer: huge')
    control('plant', do='answer', kind='cut', times=1)
    eq(broken(one), 'IncompleteRead', 'answer: cut')

    three = [entry('%s%d' % (g, n), group=g) for n, g in enumerate('xyz')]
    control('plant', do='entry', entries=[0, 2], code='InternalError', sender_fault=False, message='no', times=1)
    answer = send(url, *three)
    eq((ids(answer, 'Successful'), answer['Failed'][0]), ('ey1', {'Id': 'ex0', 'SenderFault': False, 'Code': 'InternalError',
                                                                 'Message': 'no'}), 'entries fail')
    control('plant', do='entry', group='z', code='AccessDenied', sender_fault=True, times=1)
    answer = send(url, *three)
    eq((ids(answer, 'Successful'), ids(answer, 'Failed')), ('ex0 ey1', 'ez2:AccessDenied'), 'those of a group')
    control('plant', do='entry', entries=[0], whole_group=True, times=1)
    answer = send(url, *[entry('w%d' % n, group='xyx'[n]) for n in range(3)])
    eq((ids(answer, 'Successful'), ids(answer, 'Failed')), ('ew1', 'ew0:InternalError ew2:InternalError'), 'with their groups')
    for accept in False, True:
        control('plant', do='lose', entries=[1], accept=accept, times=1)
        more = [entry(next(numbers)) for _ in range(3)]
        answer = send(url, *more)
        eq((len(answer['Successful']), ids(answer, 'Failed')), (2, ''), 'an entry in neither list')
        eq(more[1]['MessageBody'] in accepted(url).split(), accept, 'accepted: %s' % accept)
    control('plant', do='md5', entries=[1], times=1)
    answer = send(url, *[entry(next(numbers)) for _ in range(2)])
    eq([e['MD5OfMessageBody'] == '0' * 32 for e in answer['Successful']], [False, True], 'wrong digest')
    control('plant', do='md5', op='ReceiveMessage', times=1)
    eq(receive(url, 1)[0]['MD5OfBody'], '0' * 32, 'of a received one')
    control('plant', do='date', seconds=3600, times=1)
    later = http.client.HTTPConnection('127.0.0.1', PORT)
    date = email.utils.parsedate_to_datetime(one(connection=later).headers['Date']).timestamp()
    ok(3500 < date - time.time() < 3700, 'wrong Date')
    control('plant', do='drop', reused=True, times=1)
    kept = http.client.HTTPConnection('127.0.0.1', PORT)
    eq([broken(lambda: one(connection=kept)) for _ in range(2)], ['200', 'RemoteDisconnected'], 'only a reused connection')
    control('plant', do='close', times=1)
    raw = socket.create_connection(('127.0.0.1', PORT))
    headers, data = signed('ReceiveMessage', {'QueueUrl': url})
    raw.sendall(('POST / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: %d\r\n%s\r\n' % (
        PORT, len(data), ''.join('%s: %s\r\n' % h for h in headers.items()))).encode() + data)
    everything = b''.join(iter(lambda: raw.recv(65536), b''))
    ok(everything.startswith(b'HTTP/1.1 200') and b'Connection: close' not in everything, 'closed without a word')

    control('plant', do='error', code='InternalFailure', nth=[2, 4])
    eq([one().status for _ in range(5)], [200, 500, 200, 500, 200], 'the second and the fourth')
    control('clear')
    control('plant', do='error', code='InternalFailure', every=2, skip=1, times=2)
    eq([one().status for _ in range(7)], [200, 200, 500, 200, 500, 200, 200], 'every second, after one, twice')
    control('clear')
    control('plant', do='error', code='InternalFailure', queue='other.fifo')
    control('plant', do='error', code='InternalFailure', op='DeleteMessage')
    control('plant', do='error', code='InternalFailure', dedup='other')
    control('plant', do='error', code='InternalFailure', body='other')
    eq(one().status, 200, 'others are not hit')
    eq(send(url, entry('another')).status, 500, 'by a word in the body')
    control('clear')
    eq(http_call('POST', '/_control/plant', (), b'{"do":"error","nonsense":1}').status, 400, 'nonsense is refused')

    def storm():
        control('clear')
        control('chaos', p=.05, seed=7, op='SendMessageBatch', kinds=['transient', 'throttle'])
        return [broken(one) for _ in range(40)]
    codes = storm()
    ok(len(set(codes)) > 3 and '200' in codes, 'chaos', codes)
    eq(storm(), codes, 'the same seed, the same chaos')
    control('clear')
    ok(any(r['faults'] == ['error'] and not r['done'] for r in control('requests', op='SendMessageBatch')['requests']),
       'requests are recorded')
    last = control('requests', op='SendMessageBatch', whole=True)['requests'][-1]
    ok('Entries' in last['body'] and any(h[0] == 'authorization' for h in last['headers']), 'whole')
    text = http_call('POST', '/_control/accepted', (), json.dumps({
        'queue': name_of(url), 'copy': ['group', 'dedup', 'trace', 'body']}).encode()).body.decode()
    ok('slow\ts\t\\N\tms\n' in text, 'in COPY format', text[:100])


def little_services():
    control('settings', session_seconds=100, container_token='let me in')
    url = queue()

    def try_it(key, secret, token):
        return sqs('ReceiveMessage', {'QueueUrl': url}, key=key, secret=secret, token=token).code()

    path = '/container/credentials'
    eq(http_call('GET', path).status, 401, 'container: without token')
    answer = http_call('GET', path, {'Authorization': 'let me in'})
    eq(try_it(answer['AccessKeyId'], answer['SecretAccessKey'], answer['Token']), '200', 'container: what it gives is good')
    control('clock', skew=101)
    eq(try_it(answer['AccessKeyId'], answer['SecretAccessKey'], answer['Token']), '403 ExpiredToken', 'for 100 s')
    control('clock', skew=0)

    role = '/latest/meta-data/iam/security-credentials/'
    eq(http_call('GET', role).status, 401, 'IMDSv2: without token')
    eq(http_call('PUT', '/latest/api/token').status, 400, 'a token has a time to live')
    token = http_call('PUT', '/latest/api/token', {'x-aws-ec2-metadata-token-ttl-seconds': '21600'}).body.decode()
    session = {'x-aws-ec2-metadata-token': token}
    name = http_call('GET', role, session).body.decode()
    answer = http_call('GET', role + name, session)
    eq((answer['Code'], try_it(answer['AccessKeyId'], answer['SecretAccessKey'], answer['Token'])), ('Success', '200'),
       'what it gives is good')
    eq(http_call('GET', role + 'other', session).status, 404, 'another role')
    control('plant', do='error', op='ImdsCredentials', code='Failed', status=500, times=1)
    eq(http_call('GET', role + name, session).status, 500, 'can fail')

    form = {'Action': 'AssumeRoleWithWebIdentity', 'Version': '2011-06-15', 'RoleArn': 'arn:aws:iam::1:role/r',
            'RoleSessionName': 's', 'WebIdentityToken': 'jwt'}
    kind = {'Content-Type': 'application/x-www-form-urlencoded'}
    control('settings', web_identity_token='jwt', role_arn='arn:aws:iam::1:role/r')

    def assume(**changed):
        return http_call('POST', '/', kind, urllib.parse.urlencode({**form, **changed}).encode())

    answer = assume()
    parts = [answer.body.decode().split('<%s>' % tag)[1].split('<')[0]
             for tag in ('AccessKeyId', 'SecretAccessKey', 'SessionToken')]
    eq(try_it(*parts), '200', 'web identity: what it gives is good')
    ok(b'InvalidIdentityToken' in assume(WebIdentityToken='x').body, 'wrong token')
    ok(b'AccessDenied' in assume(RoleArn='x').body, 'wrong role')
    ok(b'InvalidAction' in assume(Action='SendMessage').body, 'the old protocol is not spoken')


def tls():
    url = queue()
    context = ssl.create_default_context(cafile=FAKE['ca_file'])
    connection = http.client.HTTPSConnection('localhost', FAKE['https'], context=context, timeout=10)
    headers, data = signed('GetQueueUrl', {'QueueName': name_of(url)}, headers={'Host': 'localhost:%d' % FAKE['https']})
    answer = http_call('POST', '/', headers, data, connection)
    ok((answer['QueueUrl'] or '').startswith('https://localhost:'), 'over TLS', answer.body)
    try:
        http.client.HTTPSConnection('localhost', FAKE['https'], timeout=10).request('GET', '/')
        ok(False, 'a certificate that nobody trusts')
    except ssl.SSLError:
        ok(True, 'a certificate that nobody trusts')


def http_details():
    url = queue()
    headers, data = signed('ReceiveMessage', {'QueueUrl': url})
    head = 'POST / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: %d\r\nExpect: 100-continue\r\n%s\r\n' % (
        PORT, len(data), ''.join('%s: %s\r\n' % h for h in headers.items()))
    raw = socket.create_connection(('127.0.0.1', PORT), timeout=10)
    raw.sendall(head.encode())
    ok(raw.recv(1000).startswith(b'HTTP/1.1 100'), '100 Continue')
    raw.sendall(data)
    ok(raw.recv(1000).startswith(b'HTTP/1.1 200'), 'then the answer')
    control('settings', continues=False)
    raw.sendall(head.encode())
    raw.settimeout(.1)
    try:
        ok(not raw.recv(1000), 'no 100 when told so')
    except socket.timeout:
        ok(True, 'no 100 when told so')
    control('settings', continues=True)


for test in signatures, limits, fifo, standard, dead_letters, waiting, faults, little_services, tls, http_details:
    print('# ' + test.__name__)
    try:
        test()
    except Exception as error:      # the rest shall run
        ok(False, '%s: %r' % (test.__name__, error), *traceback.format_exc().split('\n'))
    control('reset')
print('1..%d' % count)
sys.exit(failures != 0)
