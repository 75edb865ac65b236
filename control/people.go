package control

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	"weft"
	"weft/control/store"
)

// The users. A user owns nodes; whoever has tags besides is the network's (standing.go).

// userName is what a user may be called: an account's name or mail address, and nothing that plays tricks on a
// terminal or in a policy.
var userName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$`) })

func (t *tx) userInfo(u store.User) UserInfo {
	return UserInfo{
		Name: u.Name, Created: u.Created, Expires: u.Expires, Disabled: u.Disabled, Active: !t.userOut(u.Name), Nodes: len(t.nodesOf(u.Name)),
		Issuer: u.Issuer, Subject: u.Subject, Email: u.Email, Display: u.Display, Groups: u.Groups,
	}
}

// Users lists the users by name.
func (s *Server) Users() []UserInfo {
	t := &tx{snapshot: *s.now.Load(), now: time.Now()}
	nodes := make(map[string]int)
	for _, e := range t.nodes.all() {
		nodes[e.User]++
	}
	out := []UserInfo{}
	for _, name := range slices.Sorted(maps.Keys(t.users)) {
		u := t.users[name]
		out = append(out, UserInfo{
			Name: u.Name, Created: u.Created, Expires: u.Expires, Disabled: u.Disabled, Active: !t.userOut(name), Nodes: nodes[name],
			Issuer: u.Issuer, Subject: u.Subject, Email: u.Email, Display: u.Display, Groups: u.Groups,
		})
	}
	return out
}

func checkUserName(name string) error {
	if !userName().MatchString(name) {
		return sentence(weft.CodeBadRequest, "%q cannot be a user's name: it may have up to 64 letters, digits and . _ @ + - and begins with a letter or digit", name)
	}
	return nil
}

// CreateUser makes a user.
func (s *Server) CreateUser(ctx context.Context, name string) (UserInfo, error) {
	var u store.User
	err := s.do(ctx, func(t *tx) error {
		if err := checkUserName(name); err != nil {
			return err
		}
		if _, ok := t.users[name]; ok {
			return sentence(weft.CodeNameTaken, "there is a user %s already", name)
		}
		u = store.User{Name: name, Created: t.stamp()}
		t.putUser(u)
		return nil
	})
	return UserInfo{Name: u.Name, Created: u.Created, Active: true}, err
}

// changeUser puts a user into another state, and the user's nodes with it.
func (s *Server) changeUser(ctx context.Context, name string, f func(*tx, *store.User) error) (UserInfo, error) {
	var info UserInfo
	err := s.do(ctx, func(t *tx) error {
		u, ok := t.users[name]
		if !ok {
			return errNoUser(name)
		}
		if err := f(t, &u); err != nil {
			return err
		}
		t.putUser(u)
		if !u.Expires.IsZero() {
			t.after = append(t.after, func() { s.userLater(name, u.Expires) })
		}
		t.settleNodesOf(name)
		info = t.userInfo(u)
		return nil
	})
	return info, err
}

// DisableUser puts a user out, with all nodes that are the user's and have no tags, until the user is enabled. The
// user's join keys let nobody in meanwhile.
func (s *Server) DisableUser(ctx context.Context, name string) (UserInfo, error) {
	return s.changeUser(ctx, name, func(t *tx, u *store.User) error {
		if u.Disabled.IsZero() {
			u.Disabled = t.stamp()
		}
		return nil
	})
}

// EnableUser takes DisableUser back. An end that has come is taken away, too.
func (s *Server) EnableUser(ctx context.Context, name string) (UserInfo, error) {
	return s.changeUser(ctx, name, func(t *tx, u *store.User) error {
		u.Disabled = time.Time{}
		if ended(u.Expires, t.now) {
			u.Expires = time.Time{}
		}
		return nil
	})
}

// ExpireUser moves a user's end: to some time from now, or to never.
func (s *Server) ExpireUser(ctx context.Context, name string, r ExpireRequest) (UserInfo, error) {
	return s.changeUser(ctx, name, func(t *tx, u *store.User) (err error) {
		u.Expires, err = t.end("user", r)
		return err
	})
}

// RenameUser gives a user another name. Nodes, keys and identity go along.
func (s *Server) RenameUser(ctx context.Context, from, to string) (UserInfo, error) {
	var info UserInfo
	err := s.do(ctx, func(t *tx) error {
		u, ok := t.users[from]
		if !ok {
			return errNoUser(from)
		}
		if err := checkUserName(to); err != nil {
			return err
		}
		if _, ok := t.users[to]; ok {
			return sentence(weft.CodeNameTaken, "there is a user %s already: choose another name", to)
		}
		if err := t.unnamed(from); err != nil {
			return err
		}
		bare := u
		bare.Issuer, bare.Subject = "", "" // an identity is one user's, within the batch, too
		u.Name = to
		t.putUser(bare)
		t.putUser(u)
		for _, e := range t.nodesOf(from) {
			moved := *e
			moved.User = to
			t.putNode(moved, true)
		}
		for _, k := range t.keys.all() {
			if k.User == from {
				moved := *k
				moved.User = to
				t.putKey(moved)
			}
		}
		t.dropUser(from)
		if !u.Expires.IsZero() {
			t.after = append(t.after, func() { s.userLater(to, u.Expires) })
		}
		info = t.userInfo(u)
		return nil
	})
	return info, err
}

// RemoveUser removes a user who has no nodes any more. The user's join keys are withdrawn.
func (s *Server) RemoveUser(ctx context.Context, name string) error {
	return s.do(ctx, func(t *tx) error {
		if _, ok := t.users[name]; !ok {
			return errNoUser(name)
		}
		if err := t.unnamed(name); err != nil {
			return err
		}
		if nodes := t.nodesOf(name); len(nodes) > 0 {
			return sentence(weft.CodeDenied, "%s still has nodes (%s, for one): remove them first (weft admin node remove), or give them to another user (weft admin node move)",
				name, nodes[0].Name)
		}
		for _, k := range t.keys.all() {
			if k.User == name {
				gone := *k
				gone.User = ""
				if gone.Revoked.IsZero() {
					gone.Revoked = t.stamp()
				}
				t.putKey(gone)
			}
		}
		t.dropUser(name)
		return nil
	})
}

func errNoUser(name string) error {
	return sentence(weft.CodeNotFound, "there is no user %q: `weft admin user list` shows those there are, `weft admin user create` makes one", name)
}

// sameTags compares tags in whatever order.
func sameTags(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
