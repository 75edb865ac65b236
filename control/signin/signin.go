// Package signin has people show who they are at a provider of OpenID Connect, so that the coordination server can let
// their machines in.
//
// A machine that has nothing to join with is told a URL and a code. Its person opens the URL in any browser, also on
// another device, and goes three steps:
//
//	/signin/ID          to the provider, with state, nonce and PKCE (RFC 7636), all bound to this browser by a cookie
//	/signin/callback    back from there: the code becomes an ID token, which is checked
//	/signin/confirm     which machine it is, with the code that it shows, and the question whether it is the person's own
//
// The last step is what keeps somebody from signing in for a machine whose URL a stranger sent (RFC 8628 section 5.4):
// nothing is let in by the visit of a page.
//
// Who somebody is, is issuer and subject and nothing else (OpenID Connect Core section 5.7): an e-mail address may be
// given to another person, or claimed. The token must be signed by a key of the provider in an asymmetric
// algorithm, be for this client, have the nonce of this browser's visit, and be of now.
//
// The provider is asked for what it is when the first person comes, and again until it answers: a server starts without
// it. What is under way is in memory, bounded and forgotten after [Patience].
package signin

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

const (
	// Path is what the pages' paths begin with.
	Path = "/signin/"
	// Patience is how long a person has, from the machine's first word to the last page.
	Patience = 15 * time.Minute
	// maxVisits bounds the visits under way; the oldest is forgotten for a new one. Each has some 500 bytes.
	maxVisits = 4096
	// providerPatience is how long the provider has for an answer, and maxAnswer how long that may be in bytes.
	providerPatience = 15 * time.Second
	maxAnswer        = 1 << 20
	// maxGroups bounds the groups that are kept of a person, maxWord each text in bytes.
	maxGroups = 256
	maxWord   = 255

	cookieName = "weft-signin"
)

// algorithms are those that an ID token may be signed with: asymmetric ones only (RFC 7518 section 3.1, RFC 8037).
var algorithms = []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.EdDSA}

// An Identity is who somebody is, and what the provider says besides.
type Identity struct {
	Issuer, Subject string
	Email           string // for people; "" unless the provider says that it has verified it
	Name            string // for people
	Groups          []string
}

// A Machine is one that waits for its person.
type Machine struct {
	Name, System, Remote string
	Code                 string // that it shows, too
}

// A Door is where machines wait. Both methods may be called at any time by any goroutine.
type Door interface {
	// Waiting finds the machine of a URL, while it waits.
	Waiting(id string) (Machine, bool)
	// Admit lets that machine in for somebody, or says in a sentence why not.
	Admit(ctx context.Context, id string, who Identity) error
}

// Config is what a Handler is made of. All but Groups and Log is needed.
type Config struct {
	Issuer, ClientID, Secret string
	URL                      string // of the server, to which Path is added
	Groups                   string // the claim that has the groups; "": "groups"
	Scopes                   []string
	Door                     Door
	Log                      *slog.Logger
}

// Handler serves the pages. Its methods may be called by any number of goroutines at once.
type Handler struct {
	cfg    Config
	client *http.Client

	mu       sync.Mutex
	provider *oidc.Provider // nil: it has not answered yet
	visits   map[string]*visit
}

// A visit is one browser's way through the pages.
type visit struct {
	id, browser     string // the machine's, and the cookie
	nonce, verifier string
	began           time.Time
	who             *Identity // once the provider has said it
}

// New makes a Handler. Nobody is asked yet.
func New(c Config) *Handler {
	if c.Groups == "" {
		c.Groups = "groups"
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return &Handler{
		cfg: c, visits: make(map[string]*visit),
		client: &http.Client{Timeout: providerPatience, Transport: bounded{http.DefaultTransport}},
	}
}

// bounded cuts answers off that are too long to be true.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, maxAnswer), resp.Body}
	}
	return resp, err
}

// ServeHTTP serves the pages.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w)
	switch what, _ := strings.CutPrefix(r.URL.Path, Path); {
	case what == "callback" && r.Method == http.MethodGet:
		h.callback(w, r)
	case what == "confirm" && r.Method == http.MethodPost:
		h.confirm(w, r)
	case r.Method == http.MethodGet && what != "" && !strings.Contains(what, "/"):
		h.begin(w, r, what)
	default:
		tell(w, http.StatusNotFound, "There is no such page.")
	}
}

const gone = "This sign-in is over or was never begun. Ask for a new address on the machine, with weft up."

// begin sends a browser to the provider.
func (h *Handler) begin(w http.ResponseWriter, r *http.Request, id string) {
	if _, ok := h.cfg.Door.Waiting(id); !ok {
		tell(w, http.StatusNotFound, gone)
		return
	}
	config, _, err := h.oauth()
	if err != nil {
		h.cfg.Log.Error("the provider of sign-ins does not answer", "issuer", h.cfg.Issuer, "error", err)
		tell(w, http.StatusBadGateway, "The provider of sign-ins does not answer. Try again in a moment; the server's log says why.")
		return
	}
	v := &visit{id: id, browser: rand.Text(), nonce: rand.Text(), verifier: oauth2.GenerateVerifier(), began: time.Now()}
	state := h.remember(v)
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: v.browser, Path: h.base(), MaxAge: int(Patience.Seconds()), HttpOnly: true,
		Secure: strings.HasPrefix(h.cfg.URL, "https:"), SameSite: http.SameSiteLaxMode, // it must come along from the provider's page
	})
	http.Redirect(w, r, config.AuthCodeURL(state, oidc.Nonce(v.nonce), oauth2.S256ChallengeOption(v.verifier)), http.StatusFound)
}

// callback takes what the provider says of the person.
func (h *Handler) callback(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	v, ok := h.take(r, q.Get("state")) // once, whatever becomes of it
	if !ok || v.who != nil {
		tell(w, http.StatusBadRequest, gone)
		return
	}
	machine, ok := h.cfg.Door.Waiting(v.id)
	if !ok {
		tell(w, http.StatusNotFound, gone)
		return
	}
	if q.Get("error") != "" {
		tell(w, http.StatusForbidden, "The provider did not sign you in. Open the address again to try once more.")
		return
	}
	who, err := h.identify(r.Context(), q.Get("code"), v)
	if err != nil {
		h.cfg.Log.Warn("a sign-in is not believed", "issuer", h.cfg.Issuer, "error", err)
		tell(w, http.StatusForbidden, "What the provider said could not be verified, so nothing was let in. The server's log says why.")
		return
	}
	again := *v
	again.who = &who
	ask(w, question{Machine: machine, Who: who, Token: h.remember(&again), Action: h.base() + "confirm"})
}

// confirm lets the machine in.
func (h *Handler) confirm(w http.ResponseWriter, r *http.Request) {
	if o := r.Header.Get("Origin"); o != "" && o != "null" && o != origin(h.cfg.URL) {
		tell(w, http.StatusForbidden, "This page was asked for by another site.")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 4096)
	v, ok := h.take(r, r.PostFormValue("token"))
	if !ok || v.who == nil {
		tell(w, http.StatusBadRequest, gone)
		return
	}
	if err := h.cfg.Door.Admit(r.Context(), v.id, *v.who); err != nil {
		tell(w, http.StatusForbidden, "It was not let in: "+err.Error()+".")
		return
	}
	tell(w, http.StatusOK, "That is done. You can close this page and go back to the machine.")
}

// identify makes an identity of the provider's code.
func (h *Handler) identify(ctx context.Context, code string, v *visit) (Identity, error) {
	config, provider, err := h.oauth()
	if err != nil {
		return Identity{}, err
	}
	ctx = oidc.ClientContext(ctx, h.client)
	token, err := config.Exchange(ctx, code, oauth2.VerifierOption(v.verifier))
	if err != nil {
		return Identity{}, fmt.Errorf("exchange the code for a token: %w", err)
	}
	raw, ok := token.Extra("id_token").(string)
	if !ok {
		return Identity{}, errors.New("the provider gave no ID token: the scope openid must be allowed for this client")
	}
	id, err := provider.Verifier(&oidc.Config{ClientID: h.cfg.ClientID, SupportedSigningAlgs: algorithms}).Verify(ctx, raw)
	if err != nil {
		return Identity{}, fmt.Errorf("verify the ID token: %w", err)
	}
	if subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(v.nonce)) != 1 {
		return Identity{}, errors.New("the ID token was not made for this sign-in: it has another nonce")
	}
	var claims struct {
		Email    string `json:"email"`
		Verified any    `json:"email_verified"` // some providers write it as text
		Name     string `json:"name"`
		Party    string `json:"azp"`
	}
	if err := id.Claims(&claims); err != nil {
		return Identity{}, fmt.Errorf("read the ID token: %w", err)
	}
	if len(id.Audience) > 1 && claims.Party != h.cfg.ClientID || id.Subject == "" { // OpenID Connect Core section 3.1.3.7
		return Identity{}, errors.New("the ID token was made for another client, or names nobody")
	}
	who := Identity{Issuer: id.Issuer, Subject: id.Subject, Name: word(claims.Name)}
	if claims.Verified == true || claims.Verified == "true" {
		who.Email = word(claims.Email)
	}
	who.Groups, err = h.groups(id)
	if len(who.Subject) > maxWord {
		return Identity{}, errors.New("the subject is longer than OpenID Connect allows")
	}
	return who, err
}

// groups reads the claim that has them, if any does.
func (h *Handler) groups(id *oidc.IDToken) ([]string, error) {
	var all map[string]any
	if err := id.Claims(&all); err != nil {
		return nil, fmt.Errorf("read the ID token: %w", err)
	}
	list, _ := all[h.cfg.Groups].([]any)
	var out []string
	for _, g := range list {
		if s, ok := g.(string); ok && s != "" && s == word(s) && len(out) < maxGroups {
			out = append(out, s)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// word makes something harmless of what the provider says for people to read.
func word(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return -1 // controls, and what turns the direction of writing
		}
		return r
	}, s)
	return strings.ToValidUTF8(s[:min(len(s), maxWord)], "")
}

// oauth returns the provider, asking it first where it has not answered yet.
func (h *Handler) oauth() (*oauth2.Config, *oidc.Provider, error) {
	h.mu.Lock()
	p := h.provider
	h.mu.Unlock()
	if p == nil {
		// The context stays with the provider, which fetches keys with it for as long as the server runs.
		fresh, err := oidc.NewProvider(oidc.ClientContext(context.Background(), h.client), h.cfg.Issuer)
		if err != nil {
			return nil, nil, err
		}
		h.mu.Lock()
		h.provider = fresh
		h.mu.Unlock()
		p = fresh
	}
	scopes := h.cfg.Scopes
	if scopes == nil {
		scopes = []string{oidc.ScopeOpenID, "profile", "email", "groups"}
	}
	return &oauth2.Config{
		ClientID: h.cfg.ClientID, ClientSecret: h.cfg.Secret, Endpoint: p.Endpoint(), RedirectURL: h.cfg.URL + Path + "callback", Scopes: scopes,
	}, p, nil
}

// base is Path as browsers see it.
func (h *Handler) base() string {
	u, err := url.Parse(h.cfg.URL)
	if err != nil {
		return Path
	}
	return strings.TrimSuffix(u.Path, "/") + Path
}

// remember keeps a visit under a new random name.
func (h *Handler) remember(v *visit) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.visits) >= maxVisits {
		var oldest string
		for name, x := range h.visits {
			if oldest == "" || x.began.Before(h.visits[oldest].began) {
				oldest = name
			}
		}
		delete(h.visits, oldest)
	}
	name := rand.Text()
	h.visits[name] = v
	return name
}

// take finds a visit, once, if it is of the browser that asks.
func (h *Handler) take(r *http.Request, name string) (*visit, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v, ok := h.visits[name]
	cookie, err := r.Cookie(cookieName)
	if !ok || err != nil || subtle.ConstantTimeCompare([]byte(cookie.Value), []byte(v.browser)) != 1 {
		return nil, false
	}
	delete(h.visits, name)
	return v, time.Since(v.began) < Patience
}
