"""One module per technique: which plans to compare with, and the conclusion from the comparison."""
