package cli

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"html"
	"io"
	"math/big"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"weft"
	"weft/control"
)

// startProvider starts a provider of OpenID Connect at which everybody who comes is the person with that subject. What must
// not be believed of one, the tests of package signin try.
func startProvider(t *testing.T, subject string) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(v)
	}
	var srv *httptest.Server
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{
			"issuer": srv.URL, "authorization_endpoint": srv.URL + "/auth", "token_endpoint": srv.URL + "/token", "jwks_uri": srv.URL + "/keys",
		})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"keys": []any{map[string]any{
			"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "1", "n": b64(key.N.Bytes()), "e": b64(big.NewInt(int64(key.E)).Bytes()),
		}}})
	})
	mux.HandleFunc("/auth", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		http.Redirect(w, r, q.Get("redirect_uri")+"?"+url.Values{"state": {q.Get("state")}, "code": {q.Get("nonce")}}.Encode(), http.StatusFound)
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		header, _ := json.Marshal(map[string]any{"alg": "RS256", "kid": "1"})
		claims, _ := json.Marshal(map[string]any{
			"iss": srv.URL, "aud": "weft", "sub": subject, "nonce": r.PostFormValue("code"), "exp": time.Now().Add(time.Minute).Unix(),
			"email": "ana@example.org", "email_verified": true,
		})
		text := b64(header) + "." + b64(claims)
		sum := sha256.Sum256([]byte(text))
		sig, _ := rsa.SignPKCS1v15(nil, key, crypto.SHA256, sum[:])
		answer(w, map[string]any{"access_token": "x", "token_type": "Bearer", "id_token": text + "." + b64(sig)})
	})
	srv = httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv.URL
}

var pageToken = regexp.MustCompile(`name="token" value="([^"]+)"`)

// signIn is what a person does in a browser.
func (s *testServer) signIn(at string) {
	s.t.Helper()
	jar, _ := cookiejar.New(nil)
	browser := &http.Client{Jar: jar, Transport: insecure(), Timeout: 10 * time.Second}
	read := func(resp *http.Response, err error) string {
		s.t.Helper()
		if err != nil {
			s.t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusOK {
			s.t.Fatalf("%s: %s\n%s", resp.Request.URL, resp.Status, b)
		}
		return string(b)
	}
	page := read(browser.Get(at))
	m := pageToken.FindStringSubmatch(page)
	if m == nil {
		s.t.Fatalf("there is no question on\n%s", page)
	}
	read(browser.PostForm(s.url+"/signin/confirm", url.Values{"token": {html.UnescapeString(m[1])}}))
}

// TestAMachineWithNothingComesInWhenSomebodySignsIn does it twice: for a machine that is new, and when its time is over.
func TestAMachineWithNothingComesInWhenSomebodySignsIn(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	srv := newServer(t, "--oidc-issuer", startProvider(t, "4711"), "--oidc-client", "weft", "--oidc-secret-file", secret)
	var status control.Status
	if err := json.Unmarshal([]byte(srv.admin("status", "--json").out), &status); err != nil || status.SignIn == "" {
		t.Fatalf("%+v, %v", status, err)
	}
	n := newNode(t)
	n.start("", "--name", "laptop")
	if r := n.run("up", "http://127.0.0.1:1"); r.code != ExitUsage || !strings.Contains(r.err, "by http anybody") {
		t.Errorf("by http: %+v", r)
	}
	if r := n.run("up", srv.url); r.code == ExitOK || !strings.Contains(r.err, "certificate") {
		t.Errorf("with a certificate that nobody vouches for: %+v", r)
	}

	come := func(token ...string) {
		t.Helper()
		up := startWeft(t, append([]string{"--socket", n.socket, "up"}, token...)...)
		up.says("█") // after the address
		at := n.status().SignIn
		if s := n.status(); s.State != weft.NeedsSignIn || !strings.HasPrefix(at.URL, srv.url+"/signin/") || at.Code == "" {
			t.Fatalf("the node is %s, and says %+v", s.State, at)
		}
		srv.signIn(at.URL)
		if r := up.end(); r.code != ExitOK || !strings.Contains(r.out, at.URL) || !strings.Contains(r.out, at.Code) || !strings.Contains(r.out, "up: laptop.") {
			t.Errorf("weft up: %+v", r)
		}
		n.connected()
	}
	come(status.SignIn)
	first := n.status().Self
	if out := srv.admin("node", "list").out; !strings.Contains(out, "ana@example.org") {
		t.Errorf("the nodes are\n%s", out)
	}
	if r := srv.admin("node", "expire", "laptop"); r.code != ExitOK {
		t.Fatal(r.err)
	}
	wait(t, "the node to hear that its time is over", func() error {
		if s := n.status(); s.State == weft.Running {
			return errors.New("it runs")
		}
		return nil
	})
	come()
	if self := n.status().Self; self.ID != first.ID || self.Addrs[0] != first.Addrs[0] {
		t.Errorf("it is back as %+v", self)
	}
	n.stop()
}

// insecure is a browser's way past a certificate that nobody vouches for.
func insecure() http.RoundTripper {
	return &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
}
