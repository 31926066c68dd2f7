"""Which credentials SQS accepts, and the services from which clients get theirs.

Long-lived ones are told by tests. Temporary ones are given out by three little services, as on AWS: the
container endpoint (ECS, EKS Pod Identity), the instance metadata (IMDSv2), and STS AssumeRoleWithWebIdentity.
Each request gets new ones, which SQS accepts until they expire or a test revokes them.
Sources: REF feature-container-credentials, REF feature-imds-credentials, EC2 user guide (IMDSv2), STS API reference
(AssumeRoleWithWebIdentity), and what botocore 1.29 asks and reads (utils.py, credentials.py).
"""
import itertools
import json
import time
import uuid
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from .rules import Refusal
from .web import Response

DEFAULT_KEY, DEFAULT_SECRET = 'AKIAFAKESQS0EXAMPLE0', 'fake/secret+key=0'

SETTINGS = {
    'session_seconds': 3600,            # what clients are told; in the past if negative
    'session_valid_seconds': None,      # how long SQS accepts them, if not as long
    'container_token': None,            # what the Authorization header must be
    'imds_role': 'fake-role',
    'imds_token_seconds': None,         # shorter than the client asks for
    'web_identity_token': None,         # what it must be; None: anything but empty
    'role_arn': None,                   # what it must be
}


def iso(when):
    return time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(when))


class Store:
    def __init__(self, clock):
        self.clock = clock
        self.number = itertools.count(1)
        self.imds_tokens = {}
        self.known = {}
        self.add(DEFAULT_KEY, DEFAULT_SECRET)

    def add(self, key, secret, token=None, expires=None):
        self.known[key] = {'secret': secret, 'token': token, 'expires': expires}

    def find(self, key, token):
        account = self.known.get(key)
        if account is None or account['token'] != token:
            raise Refusal('UnrecognizedClientException')
        if account['expires'] is not None and account['expires'] <= self.clock.wall():
            raise Refusal('ExpiredTokenException')
        return account

    def issue(self, settings):
        n = next(self.number)
        now = self.clock.wall()
        told = now + settings['session_seconds']
        valid = settings['session_valid_seconds']
        one = {'key': 'ASIAFAKE%012d' % n, 'secret': 'temporary/%s+' % uuid.uuid4().hex,
               'token': 'FwoGZXIvYXdzE%s//////////w==' % uuid.uuid4().hex, 'expires': iso(told)}
        self.add(one['key'], one['secret'], one['token'], told if valid is None else now + valid)
        return one


def text(status, body, kind='text/plain'):
    return Response(status, body.encode(), [('Content-Type', kind)])


def as_json(status, value):
    return text(status, json.dumps(value), 'application/json')


def container(sqs, request):
    wanted = sqs.settings['container_token']
    if wanted is not None and request.header('authorization') != wanted:
        return as_json(401, {'code': 'Unauthorized', 'message': 'wrong or no Authorization'})
    one = sqs.credentials.issue(sqs.settings)
    return as_json(200, {'AccessKeyId': one['key'], 'SecretAccessKey': one['secret'], 'Token': one['token'],
                         'Expiration': one['expires'], 'RoleArn': 'arn:aws:iam::%s:role/container' % sqs.account})


def imds_token(sqs, request):
    seconds = request.header('x-aws-ec2-metadata-token-ttl-seconds') or ''
    if request.header('x-forwarded-for'):
        return text(403, '')
    if not seconds.isdecimal() or not 1 <= int(seconds) <= 21600:
        return text(400, '')
    seconds = sqs.settings['imds_token_seconds'] or int(seconds)
    token = 'AQAE%s==' % uuid.uuid4().hex
    sqs.credentials.imds_tokens[token] = sqs.clock.wall() + seconds
    response = text(200, token)
    response.headers.append(('X-Aws-Ec2-Metadata-Token-Ttl-Seconds', str(seconds)))
    return response


def imds(sqs, request, role):
    if sqs.credentials.imds_tokens.get(request.header('x-aws-ec2-metadata-token'), 0) <= sqs.clock.wall():
        return text(401, '')
    if sqs.settings['imds_role'] is None:
        return text(404, '')            # an instance without a role
    if role == '':
        return text(200, sqs.settings['imds_role'])
    if role != sqs.settings['imds_role']:
        return text(404, '')
    one = sqs.credentials.issue(sqs.settings)
    return as_json(200, {'Code': 'Success', 'LastUpdated': iso(sqs.clock.wall()), 'Type': 'AWS-HMAC',
                         'AccessKeyId': one['key'], 'SecretAccessKey': one['secret'], 'Token': one['token'],
                         'Expiration': one['expires']})


STS = 'https://sts.amazonaws.com/doc/2011-06-15/'


def sts_error(status, code, message):
    return text(status, f'<ErrorResponse xmlns="{STS}"><Error><Type>Sender</Type><Code>{code}</Code>'
                f'<Message>{escape(message)}</Message></Error><RequestId>{uuid.uuid4()}</RequestId></ErrorResponse>',
                'text/xml')


def sts(sqs, request):
    form = {key: values[0] for key, values in parse_qs(request.body.decode(errors='replace')).items()}
    if form.get('Action') != 'AssumeRoleWithWebIdentity' or form.get('Version') != '2011-06-15':
        # The old protocol of SQS comes here too: this server speaks only the new one.
        return sts_error(400, 'InvalidAction', 'Could not find operation %s for version %s' % (
            form.get('Action'), form.get('Version')))
    for name in 'RoleArn', 'RoleSessionName', 'WebIdentityToken':
        if not form.get(name):
            return sts_error(400, 'ValidationError', f'1 validation error detected: Value null at {name} is not valid')
    settings = sqs.settings
    if settings['web_identity_token'] not in (None, form['WebIdentityToken']):
        return sts_error(400, 'InvalidIdentityToken', 'The web identity token that was passed could not be validated')
    if settings['role_arn'] not in (None, form['RoleArn']):
        return sts_error(403, 'AccessDenied', 'Not authorized to perform sts:AssumeRoleWithWebIdentity')
    one = sqs.credentials.issue(settings)
    role, session = escape(form['RoleArn']), escape(form['RoleSessionName'])
    return text(200, f'''<AssumeRoleWithWebIdentityResponse xmlns="{STS}">
  <AssumeRoleWithWebIdentityResult>
    <SubjectFromWebIdentityToken>system:serviceaccount:fake</SubjectFromWebIdentityToken>
    <AssumedRoleUser>
      <Arn>{role}/{session}</Arn>
      <AssumedRoleId>AROAFAKE:{session}</AssumedRoleId>
    </AssumedRoleUser>
    <Credentials>
      <AccessKeyId>{one['key']}</AccessKeyId>
      <SecretAccessKey>{one['secret']}</SecretAccessKey>
      <SessionToken>{one['token']}</SessionToken>
      <Expiration>{one['expires']}</Expiration>
    </Credentials>
  </AssumeRoleWithWebIdentityResult>
  <ResponseMetadata><RequestId>{uuid.uuid4()}</RequestId></ResponseMetadata>
</AssumeRoleWithWebIdentityResponse>
''', 'text/xml')


def route(sqs, request):
    """(name of the operation, answer) of the service that is asked, or None."""
    path, method = request.target.split('?')[0], request.method
    role = '/latest/meta-data/iam/security-credentials/'
    if method == 'GET' and path == '/container/credentials':
        return 'ContainerCredentials', lambda: container(sqs, request)
    if method == 'PUT' and path == '/latest/api/token':
        return 'ImdsToken', lambda: imds_token(sqs, request)
    if method == 'GET' and path in (role, role[:-1]):
        return 'ImdsRole', lambda: imds(sqs, request, '')
    if method == 'GET' and path.startswith(role):
        return 'ImdsCredentials', lambda: imds(sqs, request, path[len(role):])
    if method == 'POST' and (request.header('content-type') or '').startswith('application/x-www-form-urlencoded'):
        return 'AssumeRoleWithWebIdentity', lambda: sts(sqs, request)
    return None
