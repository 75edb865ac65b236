package real

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"weft/lab/netns"
	"weft/lab/scenario"
)

const (
	// orderWithin is how long a command is tried again that fails: what it waits for, a node that joins or an exit that
	// is let, takes a second or two.
	orderWithin = 15 * time.Second
	// orderAgain is how long after a failure.
	orderAgain = 200 * time.Millisecond
	// usageExit is weft's exit code for what makes no sense, now or later.
	usageExit = 2
)

// govern puts the policy in force, and makes the users that machines belong to.
func (w *world) govern(ctx context.Context) error {
	made := map[string]bool{}
	for _, m := range w.order {
		if u := m.Member.User; u != "" && !made[u] {
			made[u] = true
			if _, err := w.server.Admin(ctx, "user", "create", u); err != nil {
				return fmt.Errorf("line %d: %w", m.Line, err)
			}
		}
	}
	if w.Policy == nil {
		return nil
	}
	file := filepath.Join(w.lab.Dir(), "policy.hujson")
	if err := os.WriteFile(file, []byte(w.Policy.Text()), 0o600); err != nil {
		return err
	}
	if _, err := w.server.Admin(ctx, "policy", "set", file); err != nil {
		return fmt.Errorf("line %d: the server does not take the policy: %w", w.Policy.Line, err)
	}
	return nil
}

// member is what a node joins with.
func (w *world) member(ctx context.Context, m *machine) (token string, flags []string, err error) {
	if m.Member.Secret != "" {
		file := filepath.Join(w.lab.Dir(), "words-of-"+m.Name)
		flags = []string{"--secret", file}
		for a := range w.servers {
			flags = append(flags, "--rendezvous", a.String())
		}
		if m.Member.Address.IsValid() {
			flags = append(flags, "--address", m.Member.Address.String())
		}
		return "", flags, os.WriteFile(file, []byte(m.Member.Secret+"\n"), 0o600)
	}
	makes := []string{"--reusable"}
	if m.Member.User != "" {
		makes = append(makes, "--user", m.Member.User)
	}
	for _, t := range m.Member.Tags {
		makes = append(makes, "--tag", "tag:"+t)
	}
	kind := strings.Join(makes, " ")
	w.joining.Lock()
	defer w.joining.Unlock()
	if w.tokens[kind] == "" {
		w.tokens[kind], err = w.server.Token(ctx, makes...)
	}
	return w.tokens[kind], nil, err
}

// startRendezvous starts a server that introduces nodes by two words, and waits until it answers.
func (w *world) startRendezvous(ctx context.Context, m *machine) error {
	p, err := m.host.Start(m.host.Command(w.ctx, w.fleet.Binary, "server", "--rendezvous-only", "--data", filepath.Join(w.lab.Dir(), m.Name+"-rendezvous")))
	if err != nil {
		return err
	}
	m.others, m.logs = append(m.others, p), append(m.logs, p)
	return netns.WaitFor(ctx, m.Name+" to answer", func() error {
		if err := p.Err(); err != nil {
			return fatal(w, err)
		}
		c, err := w.dial(m, "tcp", netip.AddrPortFrom(m.host.Addr(), 443))
		if err == nil {
			c.Close()
		}
		return err
	})
}

// obey says all commands to whoever is up before time zero.
func (w *world) obey(ctx context.Context) error {
	for _, c := range w.Commands {
		if w.hosts[c.Host].Start > 0 {
			continue
		}
		if err := w.carryOut(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// startOrders lets commands be said while the scenario happens, one after the other.
func (w *world) startOrders() {
	w.orders = make(chan scenario.Command, len(w.Commands)+len(w.Scenario.Story()))
	w.probes.Go(func() {
		for {
			select {
			case <-w.ctx.Done():
				return
			case c := <-w.orders:
				if err := w.carryOut(w.ctx, c); err != nil && w.ctx.Err() == nil {
					w.cancel(err)
				}
			}
		}
	})
}

// carryOut says one command, again and again if it fails, for what it names may be on its way.
func (w *world) carryOut(ctx context.Context, c scenario.Command) error {
	ctx, cancel := context.WithTimeoutCause(ctx, orderWithin, fmt.Errorf("tried for %v", orderWithin))
	defer cancel()
	m := w.hosts[c.Host]
	for {
		err := w.tell(ctx, m, c)
		var exit *exec.ExitError
		if err == nil {
			return nil
		}
		err = fmt.Errorf("line %d: %v: %w", c.Line, c, err)
		if errors.As(err, &exit) && exit.ExitCode() == usageExit {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(orderAgain):
		}
	}
}

// tell says a command once. The error is what weft said.
func (w *world) tell(ctx context.Context, m *machine, c scenario.Command) error {
	if m.Role == scenario.Server {
		_, err := w.server.Admin(ctx, c.Args[1:]...)
		return err
	}
	if m.node == nil {
		return fmt.Errorf("%s does not run", m.Name)
	}
	cmd := m.host.Command(ctx, w.fleet.Binary, append([]string{"--socket", m.node.Socket}, c.Args...)...)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
	}
	return nil
}
