"""ops/fetch-secret against servers on loopback that answer as the clouds' do."""

import base64
import contextlib
import datetime
import http.server
import io
import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
import unittest
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from unittest import mock

SCRIPT = Path(__file__).resolve().parents[2] / "ops" / "fetch-secret"
sys.dont_write_bytecode = True
loader = SourceFileLoader("fetch_secret", str(SCRIPT))
fetch_secret = module_from_spec(spec_from_loader("fetch_secret", loader))
loader.exec_module(fetch_secret)

PASSWORD = "s3cr3t-ZZZ"
ARN = "arn:aws:secretsmanager:eu-central-1:111122223333:secret:shop-AbCdEf"
AWS_SECRET = f"aws:{ARN}"
GCP_SECRET = "gcp:projects/p1/secrets/shop"
AZURE_SECRET = "azure:https://v1.vault.azure.net/secrets/shop"


class Cloud:
    """Answers of a cloud: {(method, path): [(status, body), ...]}, the last one for ever."""

    def __init__(self, answers):
        self.answers = {key: list(value) for key, value in answers.items()}
        self.asked = []
        cloud = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self):
                path = self.path.split("?")[0]
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                cloud.asked.append((self.command, self.path, dict(self.headers.items()), body))
                left = cloud.answers.get((self.command, path), [(404, "no such thing")])
                status, text = left.pop(0) if len(left) > 1 else left[0]
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", text)
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_PUT = do_POST = answer

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01},
                         daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def header(self, path, name):
        [found] = [h for _, p, h, _ in self.asked if p.split("?")[0] == path]
        return {k.lower(): v for k, v in found.items()}.get(name)


def aws_answers(secret):
    roles = "/latest/meta-data/iam/security-credentials/"
    keys = {"AccessKeyId": "AKID", "SecretAccessKey": "key", "Token": "session"}
    return {("PUT", "/latest/api/token"): [(200, "imds-token")],
            ("GET", roles): [(200, "tidegate\n")],
            ("GET", roles + "tidegate"): [(200, json.dumps(keys))],
            ("POST", "/"): [(200, json.dumps({"SecretString": secret}))]}


GCP_TOKEN = ("GET", "/computeMetadata/v1/instance/service-accounts/default/token")
AZURE_TOKEN = ("GET", "/metadata/identity/oauth2/token")


def gcp_answers(secret):
    data = base64.b64encode(secret.encode()).decode()
    return {GCP_TOKEN: [(200, '{"access_token": "gcp-token"}')],
            ("GET", "/v1/projects/p1/secrets/shop/versions/latest:access"):
                [(200, json.dumps({"payload": {"data": data}}))]}


def azure_answers(secret):
    return {AZURE_TOKEN: [(200, '{"access_token": "azure-token"}')],
            ("GET", "/secrets/shop"): [(200, json.dumps({"value": secret}))]}


ALL = [(AWS_SECRET, aws_answers), (GCP_SECRET, gcp_answers), (AZURE_SECRET, azure_answers)]


@contextlib.contextmanager
def placed(answers):
    """The cloud, with the script's addresses turned to it and no waiting between tries."""
    with Cloud(answers) as cloud, contextlib.ExitStack() as stack:
        for name in ("EC2_METADATA", "GCE_METADATA", "AZURE_METADATA", "GCP_SECRETS"):
            stack.enter_context(mock.patch.object(fetch_secret, name, cloud.url))
        for name in ("secrets_manager", "key_vault"):
            at = (lambda *_: cloud.url) if name == "secrets_manager" else (
                lambda url: cloud.url + "/secrets/" + url.rsplit("/", 1)[1])
            stack.enter_context(mock.patch.object(fetch_secret, name, at))
        stack.enter_context(mock.patch.object(fetch_secret.time, "sleep"))
        stack.enter_context(mock.patch.dict(os.environ, {"http_proxy": "", "no_proxy": "*"}))
        yield cloud


class FetchSecret(unittest.TestCase):
    def test_each_cloud_gives_the_password_to_the_machines_identity(self):
        for name, answers in ALL:
            with self.subTest(name), placed(answers(PASSWORD)) as cloud:
                self.assertEqual(fetch_secret.password(name), PASSWORD)
                self.assertTrue(cloud.asked)

    def test_tokens_go_where_they_belong_and_nowhere_else(self):
        with placed(aws_answers(PASSWORD)) as cloud:
            fetch_secret.password(AWS_SECRET)
            roles = "/latest/meta-data/iam/security-credentials/tidegate"
            self.assertEqual(cloud.header(roles, "x-aws-ec2-metadata-token"), "imds-token")
            self.assertEqual(cloud.header("/", "x-amz-security-token"), "session")
            self.assertIn("SignedHeaders=content-type;host;x-amz-date;x-amz-security-token;"
                          "x-amz-target, ", cloud.header("/", "authorization"))
            self.assertEqual(json.loads(cloud.asked[-1][3]), {"SecretId": ARN})
        with placed(gcp_answers(PASSWORD)) as cloud:
            fetch_secret.password(GCP_SECRET)
            self.assertEqual(cloud.header(GCP_TOKEN[1], "metadata-flavor"), "Google")
            self.assertEqual(cloud.asked[-1][2].get("Authorization"), "Bearer gcp-token")
        with placed(azure_answers(PASSWORD)) as cloud, \
                mock.patch.dict(os.environ, {"AZURE_CLIENT_ID": "id-7"}):
            fetch_secret.password(AZURE_SECRET)
            self.assertIn("resource=https%3A%2F%2Fvault.azure.net&client_id=id-7",
                          cloud.asked[0][1])
            self.assertEqual(cloud.header(AZURE_TOKEN[1], "metadata"), "true")

    def test_requests_are_signed_as_the_published_vectors_say(self):
        keys = {"id": "AKIDEXAMPLE", "secret": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"}
        now = datetime.datetime(2015, 8, 30, 12, 36, 0)
        for method, signature in [
                ("GET", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
                ("POST", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b")]:
            got = fetch_secret.sign_v4(method, "example.amazonaws.com", "/", {}, b"", "us-east-1",
                                       "service", keys, now)
            self.assertEqual(
                got["authorization"],
                "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
                f"SignedHeaders=host;x-amz-date, Signature={signature}")

    def test_an_identity_or_a_service_that_is_not_there_yet_is_waited_for(self):
        answers = gcp_answers(PASSWORD)
        answers[GCP_TOKEN].insert(0, (404, "not yet"))
        read = ("GET", "/v1/projects/p1/secrets/shop/versions/latest:access")
        answers[read][:0] = [(503, "busy"), (429, "slow down")]
        with placed(answers):
            self.assertEqual(fetch_secret.password(GCP_SECRET), PASSWORD)

    def test_a_refusal_is_not_repeated_and_says_who_refused(self):
        answers = azure_answers(PASSWORD)
        answers["GET", "/secrets/shop"] = [(403, '{"error": "Caller is not authorized"}')]
        with placed(answers) as cloud:
            with self.assertRaisesRegex(fetch_secret.Failed, "answered 403: .*not authorized"):
                fetch_secret.password(AZURE_SECRET)
            self.assertEqual(len(cloud.asked), 2)

    def test_a_redirect_does_not_carry_the_token_away(self):
        with Cloud({}) as elsewhere:
            answers = gcp_answers(PASSWORD)
            answers["GET", "/v1/projects/p1/secrets/shop/versions/latest:access"] = [
                (302, elsewhere.url + "/")]
            with placed(answers), self.assertRaisesRegex(fetch_secret.Failed, "302"):
                fetch_secret.password(GCP_SECRET)
            self.assertEqual(elsewhere.asked, [])

    def test_one_key_of_a_json_secret_is_the_password_only_where_it_was_asked_for(self):
        text = json.dumps({"username": "u", "password": PASSWORD})
        with placed(aws_answers(text)):
            self.assertEqual(fetch_secret.password(AWS_SECRET + "#password"), PASSWORD)
            self.assertEqual(fetch_secret.password(AWS_SECRET), text)
            with self.assertRaisesRegex(fetch_secret.Failed, "has no pass"):
                fetch_secret.password(AWS_SECRET + "#pass")

    def test_what_can_be_no_password_is_refused_without_showing_it(self):
        for text in ["", "\n", f"{PASSWORD}\nx", "{\n}"]:
            for name, answers in ALL:
                with self.subTest(text=text, name=name), placed(answers(text)):
                    with self.assertRaises(fetch_secret.Failed) as raised:
                        fetch_secret.password(name)
                    self.assertNotIn("ZZZ", str(raised.exception))
        with placed(aws_answers(PASSWORD)), self.assertRaises(fetch_secret.Failed) as raised:
            fetch_secret.password(AWS_SECRET + "#password")
        self.assertNotIn("ZZZ", str(raised.exception))

    def test_an_odd_name_asks_nobody(self):
        for name in ["shop", "aws:shop", "aws:arn:aws:s3:::b", "gcp:shop", "gcp:projects/p/secrets/../x/y",
                     "azure:https://evil.example/secrets/shop", "azure:http://v.vault.azure.net/secrets/s",
                     "azure:https://v.vault.azure.net@evil.example/secrets/s", "vault:x",
                     AWS_SECRET.replace("arn:aws:", "arn:aws-x:"), AWS_SECRET.replace("eu-", "eu/")]:
            with self.subTest(name), placed({}) as cloud:
                self.assertRaises(fetch_secret.Failed, fetch_secret.password, name)
                self.assertEqual(cloud.asked, [])

    def test_the_file_is_replaced_whole_and_is_for_one_user(self):
        with tempfile.TemporaryDirectory() as folder, placed(aws_answers(PASSWORD)), \
                mock.patch.dict(os.environ, {"RUNTIME_DIRECTORY": folder,
                                             "TIDEGATE_PASSWORD_SECRET": AWS_SECRET}):
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                fetch_secret.main()
                fetch_secret.main()
            self.assertEqual(out.getvalue(), "")
            self.assertEqual(os.listdir(folder), ["password"])
            file = Path(folder, "password")
            self.assertEqual(file.read_text(), PASSWORD + "\n")
            self.assertEqual(stat.S_IMODE(file.stat().st_mode), 0o600)

    def test_a_failure_leaves_the_old_password_and_exits_1(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "password").write_text("old\n")
            done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True,
                                  env={"RUNTIME_DIRECTORY": folder,
                                       "TIDEGATE_PASSWORD_SECRET": "aws:nonsense"})
            self.assertEqual(done.returncode, 1)
            self.assertIn("the password can't be fetched", done.stderr)
            self.assertEqual(Path(folder, "password").read_text(), "old\n")

    def test_without_a_secret_there_is_nothing_to_do(self):
        done = subprocess.run([sys.executable, SCRIPT], capture_output=True, env={})
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, b""))


if __name__ == "__main__":
    unittest.main()
