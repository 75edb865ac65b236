package cli

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"weft/control"
)

// startDex builds Dex, a provider of OpenID Connect that others wrote, as a program of testdata's, and starts it with one client and one
// person. It returns the issuer.
func startDex(t *testing.T, redirect string) string {
	t.Helper()
	if os.Getenv("WEFT_DEX") == "" {
		t.Skip("WEFT_DEX is not set: make test-dex fetches and builds Dex, which takes a minute")
	}
	source, program := filepath.Join("testdata", "dex"), filepath.Join(t.TempDir(), "dex")
	if out, err := exec.Command("go", "build", "-C", source, "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("Dex cannot be built: %v\n%s", err, out)
	}
	list := exec.Command("go", "list", "-C", source, "-m", "-f", "{{.Dir}}", "github.com/dexidp/dex")
	dir, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	dex := exec.Command(program, filepath.Join(strings.TrimSpace(string(dir)), "web"), redirect)
	dex.Stderr = os.Stderr
	in, err := dex.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := dex.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := dex.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close() // and it ends
		if err := dex.Wait(); err != nil {
			t.Error(err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func TestAPersonOfDexsComesIn(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	srv := &testServer{t: t, dir: filepath.Join(t.TempDir(), "server"), port: freePort(t)}
	srv.url = "https://127.0.0.1:" + strconv.Itoa(srv.port)
	srv.flags = []string{"--oidc-issuer", startDex(t, srv.url+"/signin/callback"), "--oidc-client", "weft", "--oidc-secret-file", secret}
	srv.start()
	var status control.Status
	if err := json.Unmarshal([]byte(srv.admin("status", "--json").out), &status); err != nil || status.SignIn == "" {
		t.Fatalf("%+v, %v", status, err)
	}
	n := newNode(t)
	n.start("", "--name", "laptop")
	up := startWeft(t, "--socket", n.socket, "up", status.SignIn)
	up.says("█") // after the address
	srv.signIn(n.status().SignIn.URL)
	if r := up.end(); r.code != ExitOK || !strings.Contains(r.out, "up: laptop.") {
		t.Fatalf("weft up: %+v", r)
	}
	n.connected()
	if out := srv.admin("node", "list").out; !strings.Contains(out, "kilgore@kilgore.trout") {
		t.Errorf("the nodes are\n%s", out)
	}
	if out := srv.admin("user", "list", "--json").out; !strings.Contains(out, "authors") { // the provider's group
		t.Errorf("the users are\n%s", out)
	}
	n.stop()
}
