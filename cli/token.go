package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"weft"
	"weft/host"
	"weft/wire"
)

// tokenEnv is the environment variable that a token may come in. It is taken out of the environment when read.
const tokenEnv = "WEFT_TOKEN"

const tokenHelp = "join token; - reads it from standard input, a path from that file, and $" + tokenEnv + " is used when there is none"

// readToken finds the token that was meant: itself, "-" for standard input, or the path of a file; or, when none
// was given, what the environment has, if anything. One that stands on the command line can be read there by
// everybody on the machine, so the process starts itself again without it.
func (a *app) readToken(arg string, given bool) (string, error) {
	empty := func(from string) error { return emptyToken(from + " has nothing in it") }
	switch {
	case given && strings.TrimSpace(arg) == "": // a variable of a script that is not set, most likely
		return "", emptyToken("the token is empty")
	case !given:
		return takeEnv(tokenEnv), nil
	case arg == "-":
		return readHidden(a.in, "token", "standard input", empty)
	case strings.HasPrefix(arg, wire.TokenPrefix):
		if err := a.hideToken(arg); err != nil {
			a.logger().Warn("the token stays readable in this process's command line; give it in a file", "error", err)
		}
		return arg, nil
	}
	f, err := os.Open(arg)
	if err != nil {
		if strings.ContainsAny(arg, "/.") {
			return "", fmt.Errorf("the token file cannot be read: %w", err)
		}
		return "", &weft.Error{Code: weft.CodeBadToken, Message: fmt.Sprintf(
			"that is neither a token (they begin with %q) nor a file: copy the token again, whole", wire.TokenPrefix)}
	}
	defer f.Close()
	return readHidden(f, "token", arg, empty)
}

func emptyToken(what string) error {
	return &weft.Error{Code: weft.CodeBadToken, Message: what + ": give the token that `weft admin key create` printed"}
}

// hideToken replaces the process by itself with the token in its environment instead of its command line. It
// returns only when that fails or when the token is not in the command line.
func (a *app) hideToken(token string) error { return a.hide(token, "--token", tokenEnv) }

// hide does that with whatever a flag gave.
func (a *app) hide(token, flag, env string) error {
	at := slices.IndexFunc(os.Args, func(s string) bool { return strings.HasSuffix(s, token) })
	if at < 0 {
		return nil
	}
	argv := slices.Clone(os.Args)
	argv[at] = strings.TrimSuffix(argv[at], token)
	switch {
	case argv[at] == "" && at > 0 && argv[at-1] == flag:
		argv = slices.Delete(argv, at-1, at+1)
	default: // FLAG=TOKEN, or weft up TOKEN
		argv = slices.Delete(argv, at, at+1)
	}
	return host.Restart(argv[1:], []string{env + "=" + token})
}
