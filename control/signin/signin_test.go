package signin_test

import (
	"context"
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"html"
	"io"
	"log/slog"
	"maps"
	"math/big"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/control/signin"
)

const (
	client = "weft"
	secret = "the client's secret"
)

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// A provider is one of OpenID Connect: discovery, keys, authorization by whoever asks, and tokens as the test has them made.
type provider struct {
	*httptest.Server
	key *rsa.PrivateKey

	mu        sync.Mutex
	down      bool
	challenge string // of the code that was given last
	mint      func(claims map[string]any) string
	claims    map[string]any
}

func newProvider(t *testing.T) *provider {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p := &provider{key: key}
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(v)
	}
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{
			"issuer": p.URL, "authorization_endpoint": p.URL + "/auth", "token_endpoint": p.URL + "/token", "jwks_uri": p.URL + "/keys",
			"id_token_signing_alg_values_supported": []string{"RS256", "HS256", "none"},
		})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"keys": []any{map[string]any{
			"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "1", "n": b64(key.N.Bytes()), "e": b64(big.NewInt(int64(key.E)).Bytes()),
		}}})
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		id, pass, basic := r.BasicAuth()
		if !basic {
			id, pass = r.PostFormValue("client_id"), r.PostFormValue("client_secret")
		} else {
			id, _ = url.QueryUnescape(id)
			pass, _ = url.QueryUnescape(pass)
		}
		sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
		if id != client || pass != secret || r.PostFormValue("code") != "the code" || b64(sum[:]) != p.challenge {
			w.WriteHeader(http.StatusBadRequest)
			answer(w, map[string]any{"error": "invalid_grant"})
			return
		}
		out := map[string]any{"access_token": "x", "token_type": "Bearer", "expires_in": 60}
		if token := p.mint(p.claims); token != "" {
			out["id_token"] = token
		}
		answer(w, out)
	})
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		down := p.down
		p.mu.Unlock()
		if down {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(p.Close)
	p.mint = p.signed(p.key)
	return p
}

func token(header, claims map[string]any, sign func(text string) []byte) string {
	h, _ := json.Marshal(header)
	c, _ := json.Marshal(claims)
	text := b64(h) + "." + b64(c)
	return text + "." + b64(sign(text))
}

// signed makes tokens as they should be, by a key.
func (p *provider) signed(key *rsa.PrivateKey) func(map[string]any) string {
	return func(claims map[string]any) string {
		return token(map[string]any{"alg": "RS256", "kid": "1"}, claims, func(text string) []byte {
			sum := sha256.Sum256([]byte(text))
			sig, _ := rsa.SignPKCS1v15(nil, key, crypto.SHA256, sum[:])
			return sig
		})
	}
}

// A door has one machine wait, and notes who was admitted.
type door struct {
	mu       sync.Mutex
	admitted []signin.Identity
	err      error
}

const machineID = "MACHINE"

func (d *door) Waiting(id string) (signin.Machine, bool) {
	return signin.Machine{Name: "web<script>", System: "linux", Remote: "192.0.2.7", Code: "ABCD-EFGH"}, id == machineID
}

func (d *door) Admit(_ context.Context, id string, who signin.Identity) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if id != machineID {
		return errors.New("another machine")
	}
	d.admitted = append(d.admitted, who)
	return d.err
}

type site struct {
	t *testing.T
	*provider
	*door
	url string
}

func newSite(t *testing.T) *site {
	s := &site{t: t, provider: newProvider(t), door: new(door)}
	mux := http.NewServeMux()
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	s.url = srv.URL
	mux.Handle(signin.Path, signin.New(signin.Config{
		Issuer: s.provider.URL, ClientID: client, Secret: secret, URL: srv.URL, Door: s.door, Log: slog.New(slog.DiscardHandler),
	}))
	return s
}

// A browser keeps cookies and follows nothing.
func browser() *http.Client {
	jar, _ := cookiejar.New(nil)
	return &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func (s *site) do(b *http.Client, req *http.Request) (int, string, http.Header) {
	s.t.Helper()
	resp, err := b.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), resp.Header
}

func (s *site) get(b *http.Client, path string) (int, string, http.Header) {
	s.t.Helper()
	req, err := http.NewRequest(http.MethodGet, s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.do(b, req)
}

// begin opens the machine's address, and returns the callback that the provider would send the browser to. The token
// will have the claims of somebody who is known to it, and what is in change.
func (s *site) begin(b *http.Client, change map[string]any) string {
	s.t.Helper()
	status, text, h := s.get(b, signin.Path+machineID)
	at, err := url.Parse(h.Get("Location"))
	if status != http.StatusFound || err != nil {
		s.t.Fatalf("%d %s %v", status, text, err)
	}
	q := at.Query()
	if !strings.HasPrefix(at.String(), s.provider.URL+"/auth?") || q.Get("code_challenge_method") != "S256" || q.Get("client_id") != client ||
		q.Get("redirect_uri") != s.url+signin.Path+"callback" || q.Get("response_type") != "code" {
		s.t.Errorf("the provider is asked %s", at)
	}
	s.provider.mu.Lock()
	defer s.provider.mu.Unlock()
	s.challenge = q.Get("code_challenge")
	s.claims = map[string]any{
		"iss": s.provider.URL, "aud": client, "sub": "4711", "nonce": q.Get("nonce"), "exp": time.Now().Add(time.Minute).Unix(), "iat": time.Now().Unix(),
		"email": "ana@example.org", "email_verified": true, "name": "Ana \u202eB", "groups": []string{"b", "a", "a"},
	}
	maps.Copy(s.claims, change)
	maps.DeleteFunc(s.claims, func(_ string, v any) bool { return v == nil })
	return signin.Path + "callback?code=the+code&state=" + url.QueryEscape(q.Get("state"))
}

var hidden = regexp.MustCompile(`name="token" value="([^"]+)"`)

// confirm answers the question on a page.
func (s *site) confirm(b *http.Client, page, origin string) (int, string) {
	s.t.Helper()
	m := hidden.FindStringSubmatch(page)
	if m == nil {
		s.t.Fatalf("there is no question on\n%s", page)
	}
	req, _ := http.NewRequest(http.MethodPost, s.url+signin.Path+"confirm", strings.NewReader(url.Values{"token": {html.UnescapeString(m[1])}}.Encode()))
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if origin != "" {
		req.Header.Set("Origin", origin)
	}
	status, text, _ := s.do(b, req)
	return status, text
}

func TestAPersonLetsAMachineInByThreeSteps(t *testing.T) {
	s, b := newSite(t), browser()
	status, page, h := s.get(b, s.begin(b, nil))
	if status != http.StatusOK || !strings.Contains(page, "ABCD-EFGH") || !strings.Contains(page, "web&lt;script&gt;") || strings.Contains(page, "<script>") || !strings.Contains(page, "192.0.2.7") {
		t.Fatalf("%d\n%s", status, page)
	}
	if csp := h.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || !strings.Contains(csp, "frame-ancestors 'none'") {
		t.Errorf("the page may do %q", csp)
	}
	if len(s.admitted) > 0 {
		t.Fatal("a visit let the machine in")
	}
	if status, text := s.confirm(b, page, s.url); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	want := []signin.Identity{{Issuer: s.provider.URL, Subject: "4711", Email: "ana@example.org", Name: "Ana B", Groups: []string{"a", "b"}}}
	if d := cmp.Diff(want, s.admitted); d != "" {
		t.Error(d)
	}
	if status, _ := s.confirm(b, page, s.url); status != http.StatusBadRequest || len(s.admitted) != 1 {
		t.Error("an answer counts twice")
	}
}

// TestATokenThatIsNotAsItMustBeLetsNobodyIn has a provider, or somebody in its place, give tokens that must not be believed.
func TestATokenThatIsNotAsItMustBeLetsNobodyIn(t *testing.T) {
	s := newSite(t)
	stranger, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	right := s.mint
	for name, c := range map[string]struct {
		change map[string]any
		mint   func(map[string]any) string
	}{
		"signed by another key": {mint: s.signed(stranger)},
		"not signed": {mint: func(claims map[string]any) string {
			return token(map[string]any{"alg": "none"}, claims, func(string) []byte { return nil })
		}},
		"changed after it was signed": {mint: func(claims map[string]any) string {
			parts := strings.Split(right(claims), ".")
			other := maps.Clone(claims)
			other["sub"] = "1"
			c, _ := json.Marshal(other)
			return parts[0] + "." + b64(c) + "." + parts[2]
		}},
		"signed with the client's secret": {mint: func(claims map[string]any) string {
			return token(map[string]any{"alg": "HS256", "kid": "1"}, claims, func(text string) []byte {
				m := hmac.New(sha256.New, []byte(secret))
				m.Write([]byte(text))
				return m.Sum(nil)
			})
		}},
		"signed with the public key as a secret": {mint: func(claims map[string]any) string {
			return token(map[string]any{"alg": "HS256", "kid": "1"}, claims, func(text string) []byte {
				m := hmac.New(sha256.New, s.key.N.Bytes())
				m.Write([]byte(text))
				return m.Sum(nil)
			})
		}},
		"for another client":        {change: map[string]any{"aud": "another"}},
		"for two, made for another": {change: map[string]any{"aud": []string{client, "another"}, "azp": "another"}},
		"for two, made for nobody":  {change: map[string]any{"aud": []string{client, "another"}}},
		"of another issuer":         {change: map[string]any{"iss": "https://another.example"}},
		"of another visit":          {change: map[string]any{"nonce": "another"}},
		"of no visit":               {change: map[string]any{"nonce": nil}},
		"of yesterday":              {change: map[string]any{"exp": time.Now().Add(-24 * time.Hour).Unix()}},
		"without an end":            {change: map[string]any{"exp": nil}},
		"of nobody":                 {change: map[string]any{"sub": ""}},
		"of a name without end":     {change: map[string]any{"sub": strings.Repeat("x", 300)}},
		"no token":                  {mint: func(map[string]any) string { return "" }},
		"no token but words":        {mint: func(map[string]any) string { return "a.b.c" }},
	} {
		t.Run(name, func(t *testing.T) {
			b := browser()
			callback := s.begin(b, c.change)
			s.provider.mu.Lock()
			s.mint = right
			if c.mint != nil {
				s.mint = c.mint
			}
			s.provider.mu.Unlock()
			if status, page, _ := s.get(b, callback); status != http.StatusForbidden || hidden.MatchString(page) {
				t.Errorf("%d\n%s", status, page)
			}
			s.provider.mu.Lock()
			s.mint = right
			s.provider.mu.Unlock()
		})
	}
	if len(s.admitted) > 0 {
		t.Errorf("let in: %+v", s.admitted)
	}
}

func TestOneBrowsersSignInIsNoOthers(t *testing.T) {
	s := newSite(t)
	mine, other := browser(), browser()
	callback := s.begin(mine, nil)
	s.get(other, signin.Path+machineID) // it has a cookie, too
	if status, page, _ := s.get(other, callback); status != http.StatusBadRequest {
		t.Errorf("another browser comes back with it: %d\n%s", status, page)
	}
	callback = s.begin(mine, nil)
	status, page, _ := s.get(mine, callback)
	if status != http.StatusOK {
		t.Fatalf("%d\n%s", status, page)
	}
	if status, text, _ := s.get(mine, callback); status != http.StatusBadRequest {
		t.Errorf("it comes back twice: %d\n%s", status, text)
	}
	if status, _ := s.confirm(other, page, ""); status != http.StatusBadRequest {
		t.Errorf("another browser answers: %d", status)
	}
	if status, _ := s.confirm(mine, page, "https://evil.example"); status != http.StatusForbidden {
		t.Errorf("another site's page answers: %d", status)
	}
	for _, path := range []string{"callback", "callback?state=&code=x", "callback?state=guessed&code=the+code", "NOBODY", "", "a/b"} {
		if status, _, _ := s.get(mine, signin.Path+path); status < 400 || status >= 500 {
			t.Errorf("%q: %d", path, status)
		}
	}
	if len(s.admitted) > 0 {
		t.Errorf("let in: %+v", s.admitted)
	}
}

func TestAnAddressThatIsNotVerifiedIsNotTold(t *testing.T) {
	s := newSite(t)
	for _, verified := range []any{false, nil, "false", 1} {
		b := browser()
		_, page, _ := s.get(b, s.begin(b, map[string]any{"email_verified": verified, "groups": "admins"}))
		if strings.Contains(page, "ana@example.org") {
			t.Errorf("%v: the page shows it", verified)
		}
		s.confirm(b, page, "")
		if who := s.admitted[len(s.admitted)-1]; who.Email != "" || who.Subject != "4711" || who.Groups != nil {
			t.Errorf("%v: %+v", verified, who)
		}
	}
}

func TestAProviderThatIsAwayIsAskedAgain(t *testing.T) {
	s, b := newSite(t), browser()
	s.down = true
	if status, _, _ := s.get(b, signin.Path+machineID); status != http.StatusBadGateway {
		t.Errorf("without a provider: %d", status)
	}
	s.provider.mu.Lock()
	s.down = false
	s.provider.mu.Unlock()
	if status, page, _ := s.get(b, s.begin(b, nil)); status != http.StatusOK {
		t.Errorf("%d\n%s", status, page)
	}
	s.door.err = errors.New("the user is disabled")
	_, page, _ := s.get(b, s.begin(b, nil))
	if status, text := s.confirm(b, page, ""); status != http.StatusForbidden || !strings.Contains(text, "the user is disabled") {
		t.Errorf("%d\n%s", status, text)
	}
}

// endless is a form that never ends.
type endless struct{ read atomic.Int64 }

func (e *endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'a'
	}
	if e.read.Load() == 0 {
		copy(b, "token=")
	}
	e.read.Add(int64(len(b)))
	return len(b), nil
}

func TestAFormWithoutAnEndIsNotRead(t *testing.T) {
	s := newSite(t)
	form := &endless{}
	req, _ := http.NewRequest(http.MethodPost, s.url+signin.Path+"confirm", form)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := browser().Do(req)
	if err == nil {
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("the answer is %s", resp.Status)
		}
	}
	if n := form.read.Load(); n > 32<<20 { // what sockets have room for
		t.Errorf("%d bytes of it were taken", n)
	}
	if len(s.admitted) > 0 {
		t.Error("somebody was let in")
	}
}
