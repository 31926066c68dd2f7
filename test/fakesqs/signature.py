"""Signature Version 4, checked as AWS does: the signature is computed anew from the bytes that came.

botocore computes it: what it would sign with our secret, for this method, path, these headers and this body, must
be what the client sent. Strict as AWS's rules ask: host, content-type and every x-amz-* header that arrives must be
signed, the scope must be ours, the time must be near (rules.CLOCK_TOLERANCE).
"""
import calendar
import hashlib
import hmac
import re
import time

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.compat import HTTPHeaders
from botocore.credentials import Credentials

from . import rules
from .rules import Refusal

AUTHORIZATION = re.compile(r'AWS4-HMAC-SHA256 Credential=(?P<key>[^/,\s]+)/(?P<date>\d{8})/(?P<region>[^/,\s]+)/'
                           r'(?P<service>[^/,\s]+)/(?P<end>[^/,\s]+),\s*SignedHeaders=(?P<signed>[^,\s]+),\s*'
                           r'Signature=(?P<signature>[0-9a-f]{64})')
DOES_NOT_MATCH = ('The request signature we calculated does not match the signature you provided. Check your AWS Secret '
                  'Access Key and signing method. Consult the service documentation for details.')


class Signer(SigV4Auth):
    def headers_to_sign(self, request):
        return request.headers      # exactly those that the client says it signed


def wrong(message=DOES_NOT_MATCH):
    return Refusal('InvalidSignatureException', message=message)


def check(request, sqs):
    """Raises what AWS would answer; else returns the access key."""
    authorization = request.header('authorization')
    if not authorization:
        raise Refusal('MissingAuthenticationTokenException', message='Request is missing Authentication Token')
    claim = AUTHORIZATION.fullmatch(authorization)
    if not claim:
        raise Refusal('IncompleteSignatureException', message='Authorization header is not as it must be.')
    stamp = request.header('x-amz-date')
    try:
        when = calendar.timegm(time.strptime(stamp or '', '%Y%m%dT%H%M%SZ'))
    except ValueError:
        raise Refusal('IncompleteSignatureException', message='Date must be in ISO-8601 basic format.') from None

    account = sqs.credentials.find(claim['key'], request.header('x-amz-security-token'))

    if (claim['region'], claim['service'], claim['end']) != (sqs.region, 'sqs', 'aws4_request'):
        raise wrong('Credential should be scoped to a valid region.' if claim['region'] != sqs.region
                    else 'Credential should be scoped to correct service.')
    if claim['date'] != stamp[:8]:
        raise wrong("Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP")
    now = sqs.clock.wall()
    if abs(now - when) > rules.CLOCK_TOLERANCE:
        iso = [time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(t)) for t in (now - 900, now, now + 900)]
        raise wrong(f'Signature expired: {stamp} is now earlier than {iso[0]} ({iso[1]} - 15 min.)' if when < now
                    else f'Signature not yet current: {stamp} is still later than {iso[2]} ({iso[1]} + 15 min.)')

    signed = claim['signed'].split(';')
    headers = HTTPHeaders()
    for name, value in request.headers:
        if name in signed:
            headers[name] = value
        elif name in ('host', 'content-type') or name.startswith('x-amz-'):
            raise wrong("'%s' must be a 'SignedHeader' in the AWS Authorization." % name)
    if signed != sorted(set(signed)) or any(name not in headers for name in signed) or 'host' not in signed:
        raise wrong()
    content = request.header('x-amz-content-sha256')
    if content and content != hashlib.sha256(request.body).hexdigest():
        raise wrong()

    signer = Signer(Credentials(claim['key'], account['secret']), 'sqs', sqs.region)
    theirs = AWSRequest(method=request.method, url='http://%s%s' % (request.header('host'), request.target),
                        headers=headers, data=request.body)
    theirs.context['timestamp'] = stamp
    ours = signer.signature(signer.string_to_sign(theirs, signer.canonical_request(theirs)), theirs)
    if not hmac.compare_digest(ours, claim['signature']):
        raise wrong()
    return claim['key']
