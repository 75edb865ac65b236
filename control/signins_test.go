package control

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"weft"
	"weft/control/signin"
	"weft/wire"
)

func signInAllowed(c *Config) { c.SignIn, c.SignInFor = true, time.Hour }

// person is one whom the provider vouches for.
func person(subject, email string) signin.Identity {
	return signin.Identity{Issuer: "https://id.example", Subject: subject, Email: email, Name: "N", Groups: []string{"staff"}}
}

// waits connects a machine without a secret, and returns the end of the address that it is told.
func (m *machine) waits() string {
	m.w.t.Helper()
	m.hello.SignIn = true
	m.connect()
	settle()
	return m.signInID()
}

func (m *machine) signInID() string {
	m.w.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.signIn == nil {
		m.w.t.Fatalf("the machine is told no address: %+v", m.errors)
	}
	id, ok := strings.CutPrefix(m.signIn.URL, m.w.config.URL+signin.Path)
	if !ok || m.signIn.Code == "" {
		m.w.t.Fatalf("%+v", m.signIn)
	}
	return id
}

// signsIn has somebody sign in for a machine that waits, and the machine connect again.
func (m *machine) signsIn(who signin.Identity) error {
	m.w.t.Helper()
	if err := m.w.Admit(context.Background(), m.waits(), who); err != nil {
		return err
	}
	settle()
	m.connect()
	settle()
	if m.id() == 0 || !m.has {
		m.w.t.Fatalf("somebody has signed in, and it is not let in: %+v", m.errors)
	}
	return nil
}

func TestWhoSignsInOwnsTheMachine(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.machine(nil, "laptop")
		id := a.waits()
		if shown, ok := w.Waiting(id); !ok || shown.Name != "laptop" || shown.System != "linux" || shown.Code != a.signIn.Code {
			t.Errorf("%+v", shown)
		}
		for range 10 { // it waits, and is alive
			time.Sleep(20 * time.Second)
			_ = a.say(wire.NodeMessage{Ping: &wire.Beat{N: 5}})
		}
		settle()
		if a.gone() || len(a.pongs) == 0 || a.id() != 0 {
			t.Fatalf("waiting, its stream ended: %v, %d pongs", a.gone(), len(a.pongs))
		}
		if err := w.Admit(context.Background(), id, person("1", "ana@example.org")); err != nil {
			t.Fatal(err)
		}
		settle()
		if _, ok := w.Waiting(id); ok {
			t.Error("the address is good for a second machine")
		}
		a.connect()
		settle()
		self := a.current().Self
		if self.User != "ana@example.org" || len(self.Tags) != 0 || self.Expires.IsZero() {
			t.Errorf("%+v", self)
		}
		u := w.Users()[0]
		if u.Issuer != "https://id.example" || u.Subject != "1" || u.Email != "ana@example.org" || len(u.Groups) != 1 || u.Nodes != 1 {
			t.Errorf("%+v", u)
		}
		// What was answered is used up.
		if err := w.RemoveNode(context.Background(), "laptop"); err != nil {
			t.Fatal(err)
		}
		settle()
		a.welcome, a.has, a.signIn = nil, false, nil
		if again := a.waits(); again == id || a.id() != 0 {
			t.Error("a sign-in of before lets it in again")
		}
	}, signInAllowed)
}

func TestAnAddressOfMailIsNobodysIdentity(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		first, second, third := w.machine(nil, "a"), w.machine(nil, "b"), w.machine(nil, "c")
		if err := first.signsIn(person("1", "ana@example.org")); err != nil {
			t.Fatal(err)
		}
		// Another one at the provider has the address now, or says so, or another provider does.
		if err := second.signsIn(person("2", "ana@example.org")); err != nil {
			t.Fatal(err)
		}
		elsewhere := person("1", "ana@example.org")
		elsewhere.Issuer = "https://evil.example"
		if err := third.signsIn(elsewhere); err != nil {
			t.Fatal(err)
		}
		users := map[string]bool{}
		for _, m := range []*machine{first, second, third} {
			users[m.current().Self.User] = true
		}
		if len(users) != 3 || first.current().Self.User != "ana@example.org" {
			t.Errorf("users are %v", users)
		}
		// A user whom an administrator made is taken over by nobody, until that is said.
		if _, err := w.CreateUser(context.Background(), "bob@example.org"); err != nil {
			t.Fatal(err)
		}
		bob := w.machine(nil, "d")
		if err := bob.signsIn(person("3", "bob@example.org")); err != nil {
			t.Fatal(err)
		}
		if user := bob.current().Self.User; user != "bob@example.org-2" {
			t.Errorf("signed in as %s", user)
		}
		if _, err := w.LinkUser(context.Background(), "bob@example.org", "https://id.example", "3"); weft.CodeOf(err) != weft.CodeNameTaken {
			t.Errorf("an identity is two users': %v", err)
		}
		if _, err := w.LinkUser(context.Background(), "bob@example.org", "https://id.example", "4"); err != nil {
			t.Fatal(err)
		}
		linked := w.machine(nil, "e")
		if err := linked.signsIn(person("4", "whoever@example.org")); err != nil {
			t.Fatal(err)
		}
		if user := linked.current().Self.User; user != "bob@example.org" {
			t.Errorf("signed in as %s", user)
		}
		odd := w.machine(nil, "f")
		if err := odd.signsIn(person("a|b/<c>", "")); err != nil || odd.current().Self.User != "user-abc" {
			t.Errorf("%v, signed in as %s", err, odd.current().Self.User)
		}
	}, signInAllowed)
}

func TestADisabledUserSignsInForNothing(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx := context.Background()
		a := w.machine(nil, "a")
		if err := a.signsIn(person("1", "ana@example.org")); err != nil {
			t.Fatal(err)
		}
		if _, err := w.DisableUser(ctx, "ana@example.org"); err != nil {
			t.Fatal(err)
		}
		b := w.machine(nil, "b")
		if err := b.signsIn(person("1", "ana@example.org")); weft.CodeOf(err) != weft.CodeDisabled || b.id() != 0 {
			t.Errorf("%v", err)
		}
		settle()
		if code, _ := a.lastError(); code != weft.CodeDisabled || a.gone() {
			t.Errorf("the user's machine hears %q", code)
		}
		// Disabled between the answer and the machine's next word, it counts for nothing.
		if _, err := w.EnableUser(ctx, "ana@example.org"); err != nil {
			t.Fatal(err)
		}
		if err := w.Admit(ctx, b.signInID(), person("1", "ana@example.org")); err != nil {
			t.Fatal(err)
		}
		if _, err := w.DisableUser(ctx, "ana@example.org"); err != nil {
			t.Fatal(err)
		}
		settle()
		b.connect()
		settle()
		if b.id() != 0 || len(w.Nodes()) != 1 {
			t.Error("let in for a user who is disabled")
		}
	}, signInAllowed)
}

func TestAnExpiredNodeIsBackWhenItsUserSignsInAgain(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx := context.Background()
		a := w.machine(nil, "a")
		if err := a.signsIn(person("1", "ana@example.org")); err != nil {
			t.Fatal(err)
		}
		before := a.current().Self
		if _, err := w.ExpireNode(ctx, "a", ExpireRequest{}); err != nil {
			t.Fatal(err)
		}
		settle()
		id := a.signInID()
		if code, _ := a.lastError(); code != weft.CodeExpiredNode || a.gone() {
			t.Fatalf("it hears %q", code)
		}
		if err := w.Admit(ctx, id, person("2", "eve@example.org")); weft.CodeOf(err) != weft.CodeDenied {
			t.Errorf("somebody else brings it back: %v", err)
		}
		a.mu.Lock()
		a.has = false
		a.mu.Unlock()
		if err := w.Admit(ctx, id, person("1", "ana@example.org")); err != nil {
			t.Fatal(err)
		}
		settle()
		if self := a.current().Self; !a.has || self.ID != before.ID || self.Addrs[0] != before.Addrs[0] || !self.Expires.After(time.Now()) {
			t.Errorf("it is back as %+v", self)
		}
		if _, err := w.DisableNode(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		settle()
		if err := w.Admit(ctx, id, person("1", "ana@example.org")); err == nil {
			t.Error("a used address works again")
		}
		if e, _ := w.now.Load().nodes.get(uint32(before.ID)); e.standing != disabled {
			t.Errorf("it is %v", e.standing)
		}
	}, signInAllowed)
}

func TestManyMachinesThatWaitAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		var crowd []*machine
		for i := range maxSignInsFrom + 5 {
			m := w.machine(nil, fmt.Sprint("m", i))
			m.hello.SignIn = true
			m.connect()
			crowd = append(crowd, m)
		}
		settle()
		told, refused := 0, 0
		for _, m := range crowd {
			if code, _ := m.lastError(); code == weft.CodeUnavailable {
				refused++
			} else if m.signIn != nil {
				told++
			}
		}
		if told != maxSignInsFrom || refused != 5 {
			t.Errorf("%d are told an address and %d refused", told, refused)
		}
		// The same machine again is no other one, and in time all are forgotten.
		first := crowd[0].ended
		before := crowd[0].signIn.URL
		crowd[0].connect()
		time.Sleep(lingerTimeout)
		settle()
		select {
		case <-first:
		default:
			t.Error("the stream of before is still there")
		}
		if crowd[0].signIn.URL != before {
			t.Error("the same machine is told another address")
		}
		time.Sleep(signin.Patience + time.Second)
		late := w.machine(nil, "late")
		late.waits()
	}, signInAllowed)
}

func TestWithoutAProviderNobodyWaits(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		m := w.machine(nil, "m")
		m.hello.SignIn = true
		refusedWith(t, m, weft.CodeRemoved, "does not know this machine")
	})
}
