package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// scripted makes an editor of a script, which gets the file as its first argument.
func scripted(t *testing.T, script string) {
	path := filepath.Join(t.TempDir(), "editor")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("VISUAL", "")
	t.Setenv("EDITOR", path+" --")
	t.Setenv("TMPDIR", t.TempDir())
}

func TestAnAdministratorSetsAPolicy(t *testing.T) {
	srv := newServer(t)
	file := filepath.Join(t.TempDir(), "policy.hujson")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if r := srv.admin("policy", "get"); r.code != ExitOK || !strings.Contains(r.out, "autogroup:self") {
		t.Errorf("at first: %+v", r)
	}
	if r := srv.admin("status"); !strings.Contains(r.out, "none is set") {
		t.Errorf("the status says %q", r.out)
	}
	write("{\"acls\": [\n  {\"action\": \"accept\", \"src\": [\"zed\"], \"dst\": [\"*:*\"]}]}")
	for _, command := range []string{"check", "set"} {
		r := srv.admin("policy", command, file)
		if r.code != ExitFailed || r.out != "" || !strings.HasPrefix(r.err, file+`:2:32: there is no user and no host "zed"`) {
			t.Errorf("%s: %+v", command, r)
		}
	}
	write("{\"nodeAttrs\": [], \"acls\": [{\"action\": \"accept\", \"src\": [\"*\"], \"dst\": [\"*:22\"]}]}\n")
	if r := srv.admin("policy", "check", file); r.code != ExitOK || !strings.Contains(r.err, ":1:2: warning: ") {
		t.Errorf("%+v", r)
	}
	if r := srv.admin("policy", "set", file, "--revision", "0123456789abcdef"); r.code != ExitFailed || !strings.Contains(r.err, "somebody changed") {
		t.Errorf("%+v", r)
	}
	if r := srv.admin("policy", "set", file, "--revision", "default"); r.code != ExitOK || !strings.HasPrefix(r.out, "set, revision ") {
		t.Errorf("%+v", r)
	}
	if r := srv.admin("policy", "get"); !strings.Contains(r.out, `"*:22"`) {
		t.Errorf("%+v", r)
	}
	if r := srv.admin("status"); strings.Contains(r.out, "none is set") {
		t.Errorf("the status says %q", r.out)
	}
	if r := srv.admin("policy", "set", filepath.Join(t.TempDir(), "none")); r.code != ExitFailed || !strings.Contains(r.err, "the policy cannot be read") {
		t.Errorf("%+v", r)
	}

	scripted(t, `sed -i 's/:22/:2222/' "$2"`)
	if r := srv.admin("policy", "edit"); r.code != ExitOK || !strings.Contains(srv.admin("policy", "get").out, ":2222") {
		t.Errorf("%+v", r)
	}
	if left, _ := filepath.Glob(os.Getenv("TMPDIR") + "/weft-policy-*"); len(left) != 0 {
		t.Errorf("%q is left", left)
	}
	scripted(t, `true`)
	if r := srv.admin("policy", "edit"); r.code != ExitOK || r.out != "nothing changed\n" {
		t.Errorf("%+v", r)
	}
	for _, script := range []string{`echo '{' > "$2"`, `echo '{}' > "$2"; exit 3`} {
		scripted(t, script)
		r := srv.admin("policy", "edit")
		left, _ := filepath.Glob(os.Getenv("TMPDIR") + "/weft-policy-*")
		if r.code != ExitFailed || len(left) != 1 || !strings.Contains(r.err, left[0]) || !strings.Contains(srv.admin("policy", "get").out, ":2222") {
			t.Errorf("%s: %+v, and %q is left", script, r, left)
		}
	}
}
