from jaxpr_opt.cli.main import main as main
